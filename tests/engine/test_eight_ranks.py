"""Eight ranks, as Kimi-K2.5 runs on eight GPUs: start, proof, rows and end, on a CPU."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from harness import models
from harness.capture.session import Deadlines
from harness.estimate import needs
from harness.extraction import EngineOptions
from harness.host.supervision.policy import DEFAULT_ACTIONS, Action, Danger, Supervision
from harness.oracles.reference import ReferenceHost
from tests.engine._support import assert_parity, engine_of, reports

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# Eight interpreters import vLLM at once, on as few as two cores.
PATIENT = Deadlines(start=300, load=2400, first_batch=900, batch=900, shutdown=180)
# Where more wants to run, each gets 1 or 2 % of a core, less than the supervisor calls busy.
NO_STALL = Supervision(actions={**DEFAULT_ACTIONS, Danger.STALL: Action.WARN})


def test_eight_ranks_start_agree_and_write_each_sample_once(tmp_path: Path) -> None:
    packed, twin = tmp_path / "int4", tmp_path / "twin"
    models.make("kimi-k2.5-tiny", packed, experts="int4")
    models.make("kimi-k2.5-tiny", twin, experts="int4-twin")
    # One head, one group of INT4 and 64 rows of the vocabulary a rank: no rank holds less.
    assert all(check.state != "fail" for check in needs(packed, 8).checks)
    options = EngineOptions(
        model=packed,
        layers="1,3,4",
        dtype="float32",
        capture="native",
        tensor_parallel_size=8,
        deadlines=PATIENT,
    )
    draw = random.Random(8)
    prompts = [[draw.randrange(250) for _ in range(length)] for length in (1, 17, 96, 40)]
    with engine_of(options, tmp_path, longest_prompt=120, supervision=NO_STALL) as session:
        assert session.loaded is not None
        assert len(session.loaded.workers) == 8
        with ReferenceHost(twin, Path(sys.executable), tmp_path / "reference") as reference:
            assert_parity(reports(session, reference, prompts))
        assert not list(session.spool.glob("*.safetensors"))
