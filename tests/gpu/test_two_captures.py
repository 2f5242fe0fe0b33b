"""Patched rows against native ones in the same forward passes.

The engine here is one of its own: the session's ends before it is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness import models
from harness.extraction import EngineOptions
from harness.extraction.plan import plan_engine
from tests.captures import compare_beside, session_beside
from tests.gpu.conftest import Figures

pytestmark = [pytest.mark.gpu, pytest.mark.engine, pytest.mark.slow]
LONGEST = 2046


def mixed(model: Path, count: int, *, least: int = 100) -> list[list[int]]:
    draw = np.random.default_rng(1)
    top = models.read(model).vocab_size // 2
    lengths = draw.integers(least, LONGEST + 1, count)
    return [draw.integers(0, top, length).tolist() for length in lengths]


@pytest.mark.usefixtures("free_gpus")
def test_120_mixed_prompts_have_bit_equal_rows_in_both_captures(
    own_engine: EngineOptions, tmp_path: Path, figures: Figures
) -> None:
    plan = plan_engine(
        replace(own_engine, capture="native"), longest_prompt=LONGEST, spool=tmp_path / "spool"
    )
    with session_beside(plan, tmp_path) as session:
        session.load()
        session.require_proof()
        found = compare_beside(session, mixed(own_engine.model, 120))
    figures(
        prompts=len(found),
        rows=sum(one.rows for one in found),
        wrong_rows=sum(one.wrong_rows for one in found),
        worst=max(one.worst for one in found),
    )
    assert sum(one.rows for one in found) > 8192 * 3  # many prompts are cut
    assert [one.wrong_rows for one in found] == [0] * len(found)
