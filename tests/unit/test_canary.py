from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.oracles.canary import canary_prompts, judge, judge_logprobs

DEPTHS = (3, 1, 6)


def good_report() -> list[dict[str, Any]]:
    sizes = {"rows": 33, "written": 33}
    column = {**sizes, "unseen": 0, "wrong": 0, "max_rel_err": 0.0, "looks_like": None}
    return [
        {
            "tokens": 33,
            "depths": [{"depth": depth, **column} for depth in DEPTHS],
            "logprobs": {"max_err": 0.0, "mean_err": 0.0, "tokens": 32},
            "faults": [],
        }
        for _ in range(3)
    ]


def test_a_good_report_has_no_findings() -> None:
    assert judge(good_report(), depths=DEPTHS, dtype="float32") == []


@pytest.mark.parametrize("column", range(3))
def test_a_wrong_depth_is_named_with_the_depth_it_equals(column: int) -> None:
    report = copy.deepcopy(good_report())
    report[1]["depths"][column].update(wrong=33, max_rel_err=0.9, looks_like=4)
    (finding,) = judge(report, depths=DEPTHS, dtype="float32")
    assert finding.check == "witness"
    assert f"depth {DEPTHS[column]} " in finding.expected
    assert "they equal depth 4" in finding.found


def test_rows_the_model_never_saw_are_a_finding() -> None:
    report = good_report()
    report[2]["depths"][0]["unseen"] = 2
    (finding,) = judge(report, depths=DEPTHS, dtype="float32")
    assert "2 of 33 rows never passed" in finding.found


def test_a_lost_row_is_a_finding_that_counts_rows() -> None:
    report = good_report()
    report[1]["depths"][0]["written"] = 32
    (finding,) = judge(report, depths=DEPTHS, dtype="float32")
    assert (finding.check, finding.expected, finding.found) == ("rows", "33 rows", "32")


@pytest.mark.parametrize("bad", [0.5, float("nan"), float("inf")])
def test_log_probabilities_that_differ_or_are_nan_are_a_finding(bad: float) -> None:
    report = good_report()
    report[0]["logprobs"] = {"max_err": bad, "mean_err": 0.0, "tokens": 32}
    (finding,) = judge(report, depths=DEPTHS, dtype="bfloat16")
    assert finding.check == "logprobs"
    assert judge_logprobs("x", report[0]["logprobs"], dtype="bfloat16")[0].check == "logprobs"


def test_columns_in_another_order_are_a_finding() -> None:
    report = good_report()
    report[0]["depths"].reverse()
    assert judge(report, depths=DEPTHS, dtype="float32")[0].check == "witness"


def test_a_missing_witness_is_a_finding_not_a_pass() -> None:
    report = good_report()
    report[0]["depths"] = None
    assert judge(report, depths=DEPTHS, dtype="float32")[0].check == "witness"


@given(
    vocab=st.integers(16, 2000),
    forbidden=st.frozensets(st.integers(0, 1999), max_size=3),
    longest=st.integers(1, 600),
    budget=st.integers(1, 300),
    chunked=st.booleans(),
)
def test_no_two_canary_prompts_share_a_token_at_a_position(
    vocab: int, forbidden: frozenset[int], longest: int, budget: int, chunked: bool
) -> None:
    prompts = canary_prompts(
        vocab_size=vocab,
        forbidden=forbidden,
        longest=longest,
        token_budget=budget,
        chunked=chunked,
    )
    assert len(prompts) == 3
    assert len(prompts[0]) == len(prompts[1])
    for prompt in prompts:
        assert 1 <= len(prompt) <= longest
        assert all(0 <= token < vocab and token not in forbidden for token in prompt)
    keys = [(token, place) for prompt in prompts for place, token in enumerate(prompt)]
    assert len(keys) == len(set(keys))


def test_the_long_canary_prompt_is_cut_into_chunks_where_allowed() -> None:
    prompts = canary_prompts(
        vocab_size=512, forbidden=frozenset({5}), longest=500, token_budget=64, chunked=True
    )
    assert len(prompts[2]) > 64
