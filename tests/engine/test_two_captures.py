"""Both captures in the same forward passes, on a CPU."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.extraction import EngineOptions
from harness.extraction.plan import plan_engine
from tests.captures import compare_beside, session_beside

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_patched_rows_equal_native_rows_bit_for_bit_in_the_same_forward(
    tiny_wrapper: Path, tmp_path: Path
) -> None:
    options = EngineOptions(
        model=tiny_wrapper,
        layers="4,1,3",
        dtype="float32",
        capture="native",
        use_mla=False,
        max_num_batched_tokens=64,
    )
    plan = plan_engine(options, longest_prompt=255, spool=tmp_path / "spool")
    draw = random.Random(2)
    prompts = [[draw.randrange(250) for _ in range(draw.randrange(1, 256))] for _ in range(20)]
    with session_beside(plan, tmp_path) as session:
        session.load()
        session.require_proof()
        found = compare_beside(session, prompts)
        held = session.held()
    assert [one.wrong_rows for one in found] == [0] * len(prompts)
    assert all(worker["partial"] == 0 for worker in held)
