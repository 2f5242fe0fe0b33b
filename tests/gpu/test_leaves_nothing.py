"""Memory of the GPUs comes back, one session has them at a time, and the engine loads once.

The session's engine ends first; the slow tests run pytest sessions of their own with the plugin.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from harness.gpu_lock import GpuLock, gpus_of
from harness.plugin._session import SESSION
from harness.reclaim import meter_of_this_machine
from harness.reclaim.memory import SLACK, chosen, used
from tests.gpu._lane import end_session_engine
from tests.gpu.conftest import Figures

if TYPE_CHECKING:
    from harness.settings import Settings

pytestmark = [pytest.mark.gpu]
BACK_S = 60.0

LOADS_ONCE = """
def test_first(engine):
    assert engine.loads == 1
    engine.hidden_states([[1, 2, 3]])

def test_second(engine):
    assert engine.loads == 1
    engine.hidden_states([[4, 5]])
"""
WORKER_KILLED = """
import os, signal, threading, time
import pytest
from harness.errors import EngineFailed

def test_worker_is_killed(engine):
    pid = engine.loaded.workers[-1]["pid"]
    killed = []
    def kill():
        killed.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)
    threading.Timer(1.0, kill).start()
    with pytest.raises(EngineFailed) as caught:
        engine.plain([[1, 2, 3]] * 8, repeats=1_000_000)
    assert time.monotonic() - killed[0] < 2.0
    assert "SIGKILL" in caught.value.failure.found
"""


def memory() -> dict[int, int]:
    """Used bytes of each visible device."""
    reading = meter_of_this_machine().read()
    assert reading, "NVML gave no answer"
    wanted = chosen(reading, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return {index: size for index, size in used(reading).items() if index in wanted}


def session(folder: Path, settings: Settings, source: str) -> subprocess.CompletedProcess[str]:
    """Run a test file in a session of its own, with the settings of this one."""
    (folder / "test_inner.py").write_text(source)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "harness.plugin",
    ]
    command += [f"--rootdir={folder}", "--hs-require-engine", f"--hs-python={settings.python}"]
    command += [f"--hs-layers={settings.layers}"]
    command += [f"--hs-tensor-parallel-size={settings.tensor_parallel_size}"]
    command += [f"--hs-gpu-memory-utilization={settings.gpu_memory_utilization}"]
    command += [f"--hs-model={settings.model}"] if settings.model else []
    done = subprocess.run(
        [*command, "test_inner.py"], cwd=folder, text=True, capture_output=True, timeout=1800
    )
    print(done.stdout[-6000:], done.stderr[-2000:])
    return done


def back_after(baseline: dict[int, int]) -> float:
    """Seconds until every device is back to its baseline and 256 MiB."""
    begun = time.monotonic()
    while any(size > baseline[index] + SLACK for index, size in memory().items()):
        assert time.monotonic() - begun < BACK_S, (baseline, memory())
        time.sleep(0.5)
    return time.monotonic() - begun


@pytest.fixture
def memory_back(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config, figures: Figures
) -> None:
    """Ends the session's engine and waits until its memory is back."""
    if pytestconfig.stash[SESSION].keeper.report is None:
        pytest.skip("this session has loaded no engine")
    before = {row.device: row.used for row in request.getfixturevalue("clean_gpus").rows}
    baseline = {index: size for index, size in before.items() if size is not None}
    assert baseline
    during = memory()
    end_session_engine(pytestconfig)
    figures(memory_back_s=round(back_after(baseline), 1), before=baseline, during=during)


@pytest.mark.engine
@pytest.mark.usefixtures("memory_back")
def test_memory_of_the_sessions_engine_is_back_within_a_minute(
    pytestconfig: pytest.Config,
) -> None:
    report = pytestconfig.stash[SESSION].keeper.report
    assert report is not None
    assert report.left == ""
    assert report.loads == 1


@pytest.mark.slow
@pytest.mark.usefixtures("free_gpus")
@pytest.mark.parametrize("source", [LOADS_ONCE, WORKER_KILLED], ids=["session", "worker-killed"])
def test_memory_is_back_within_a_minute_after(
    source: str, tmp_path: Path, hs_settings: Settings
) -> None:
    baseline = memory()
    done = session(tmp_path, hs_settings, source)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "engine: 1 load in" in done.stdout
    assert "left behind" not in done.stdout
    print(SimpleNamespace(memory_back_s=round(back_after(baseline), 1), before=baseline))


@pytest.mark.slow
@pytest.mark.usefixtures("free_gpus")
def test_second_session_is_refused_while_the_gpus_are_locked(
    tmp_path: Path, hs_settings: Settings
) -> None:
    baseline = memory()
    with GpuLock(gpus_of(os.environ)):
        done = session(tmp_path, hs_settings, LOADS_ONCE)
    assert done.returncode == 1
    assert "gpus.locked" in done.stdout
    assert f"pid {os.getpid()} of" in done.stdout
    assert "engine: 0 loads" in done.stdout or "engine: 1 load" not in done.stdout
    assert all(size <= baseline[index] + SLACK for index, size in memory().items())
