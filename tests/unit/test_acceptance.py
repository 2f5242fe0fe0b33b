from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.capture.protocol import Captured
from harness.extraction.accept import Acceptance, token_hash

IDS = [5, 6, 7]


def sample(**changes: Any) -> Captured:
    good = Captured(
        key="0",
        path=Path("0.safetensors"),
        rows=3,
        columns=4,
        hidden=8,
        dtype="float32",
        bytes=100,
        checksum="blake3:00",
        token_hash=token_hash(IDS),
        last_row="aa",
        logprobs={"max_err": 0.0, "mean_err": 0.0},
    )
    return replace(good, **changes)


def acceptance() -> Acceptance:
    return Acceptance(columns=4, hidden=8, dtype="float32")


def test_a_good_sample_is_accepted() -> None:
    assert acceptance().check(sample(), "a", IDS) == []


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"rows": 2}, "rows"),
        ({"token_hash": token_hash([5, 6, 8])}, "token-ids"),
        ({"columns": 3}, "shape"),
        ({"hidden": 7}, "shape"),
        ({"dtype": "bfloat16"}, "shape"),
        ({"faults": [{"check": "finite", "column": 1, "count": 2, "first": 0}]}, "finite"),
        (
            {"faults": [{"check": "equal-columns", "column": 2, "count": 3, "first": 1}]},
            "equal-columns",
        ),
        ({"logprobs": {"max_err": 0.4, "mean_err": 0.1}}, "logprobs"),
        ({"logprobs": {"max_err": float("nan"), "mean_err": 0.0}}, "logprobs"),
    ],
)
def test_each_fault_of_a_sample_is_named(changes: dict[str, Any], check: str) -> None:
    assert [f.check for f in acceptance().check(sample(**changes), "a", IDS)] == [check]


def test_a_sample_with_another_prompts_last_row_is_refused() -> None:
    gate = acceptance()
    assert gate.check(sample(), "a", IDS) == []
    (finding,) = gate.check(sample(token_hash=token_hash([1, 2, 3])), "b", [1, 2, 3])
    assert finding.check == "foreign-rows"
    assert "that of a" in finding.found


def test_identical_prompts_may_have_identical_rows() -> None:
    gate = acceptance()
    assert gate.check(sample(), "a", IDS) == []
    assert gate.check(sample(key="1"), "b", IDS) == []
