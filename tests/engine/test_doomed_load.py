"""A load of a real engine that cannot succeed is ended early, and says what that saves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness import state
from harness.errors import EngineFailed
from harness.extraction import EngineOptions, open_session
from harness.extraction._watched import load_kind
from harness.extraction.plan import plan_engine
from harness.host import processes
from harness.host.supervision import loads
from harness.host.supervision.phases import LoadTrack
from harness.host.supervision.policy import LoadProgress, Supervision

pytestmark = pytest.mark.engine
EXPECTED_S = 1200.0


@pytest.mark.parametrize(
    ("fault", "ranks"), [("raise", 1), pytest.param("hang", 2, marks=pytest.mark.slow)]
)
def test_load_that_fails_after_the_first_weights_is_cut_and_tells_the_seconds_saved(
    fault: str,
    ranks: int,
    tiny_wrapper: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path / "state"))
    options = EngineOptions(
        model=tiny_wrapper, layers="1,3,4", dtype="float32", tensor_parallel_size=ranks
    )
    plan = plan_engine(options, longest_prompt=100, spool=tmp_path / "spool")
    loads.remember(load_kind(plan), EXPECTED_S, LoadTrack(0.0))
    progress: list[LoadProgress] = []
    session = open_session(
        plan,
        log=tmp_path / "engine.log",
        preload=["loader_faults"],
        env={
            "PYTHONPATH": str(Path(__file__).parent / "faults"),
            "HARNESS_TEST_LOADER_FAULT": fault,
        },
        supervision=Supervision(on_progress=progress.append),
    )
    begun = time.monotonic()
    with session, pytest.raises(EngineFailed) as caught:
        session.load()
    seconds = time.monotonic() - begun
    error = caught.value
    print(error)
    assert error.failure.id == "host.doomed"
    assert error.details["fatal"] == "ptx-toolchain"
    assert error.details["phase"] == "weights"
    # Whatever the machine's speed: what was not waited for.
    saved = EXPECTED_S - error.details["load_seconds"]
    assert error.details["saved_seconds"] == pytest.approx(saved, abs=0.1)
    assert "of an expected 20:00 (the last load of this kind), " in error.failure.found
    assert " saved: " in error.failure.found
    # From the first weights to the cut, and from there to the end of every process.
    weights = next(report for report in progress if report.phase == "weights")
    assert error.details["load_seconds"] - weights.seconds < 15
    assert seconds - error.details["load_seconds"] < 60
    phases = [report.phase for report in progress if report.new_phase]
    assert phases == ["import", "download check", "weights"]
    mark = "HARNESS_TEST_LOADER_FAULT"
    assert processes.marked(f"{mark}={fault}") == []
