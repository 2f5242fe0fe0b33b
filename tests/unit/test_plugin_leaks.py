"""What a session leaves: nothing, and where it leaves something, it fails and says what."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.gpu_lock import GpuLock
from tests.unit.interpreters import StandIn
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

USE = """
    def test_first(engine):
        engine.hidden_states([[1, 2, 3]])
"""


@pytest.fixture
def cuda(inner: Inner) -> StandIn:
    """An interpreter whose vLLM uses GPUs."""
    inner.gpus(["H200"])
    stand_in = StandIn(inner.pytester.path / "cuda", device="cuda")
    path = stand_in.folder / "facts.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "gpus": 1}))
    return stand_in


def test_engine_on_gpus_that_another_session_has_is_refused(
    inner: Inner, cuda: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-x")
    with GpuLock(["MIG-x"], folder=Path(os.environ["HARNESS_GPU_LOCKS"])):
        result = inner.run(USE, python=cuda)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*gpus.locked*"])
    assert cuda.engines() == []


def test_session_gives_its_gpus_back(
    inner: Inner, cuda: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-x")
    result = inner.run(USE, python=cuda)
    assert len(cuda.engines()) == 1, result.stdout.str()
    GpuLock(["MIG-x"], folder=Path(os.environ["HARNESS_GPU_LOCKS"])).release()
    assert [path.name for path in Path(os.environ["HARNESS_GPU_LOCKS"]).iterdir()] == ["MIG-x.lock"]
