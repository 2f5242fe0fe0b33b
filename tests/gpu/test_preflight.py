"""Preflight on a real GPU: clean, then held by a process, then clean again; and after an engine.

The processes of these tests use torch of ``--hs-python``; pytest's own never touches CUDA.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.preflight import Census, Need, Probe, Report, Verdict, preflight, used_bytes
from harness.preflight.run import look
from harness.settings import Settings

pytestmark = pytest.mark.gpu

GB = 10**9
HELD = 10 * GB
BACK_S = 60.0
SLACK = 256 << 20
NEED = Need(devices=1, utilization=0.5)

HOLDER = """
import sys, torch
block = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
block.fill_(1)
torch.cuda.synchronize()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def engine_python(hs_settings: Settings) -> Path:
    return hs_settings.python


def looked(python: Path, **options: float) -> Report:
    return look(NEED, probe=Probe(**options), python=python)  # type: ignore[arg-type]


@contextlib.contextmanager
def holder(python: Path, size: int) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold memory of the first visible GPU, until the block ends."""
    command = [str(python), "-c", HOLDER, str(size)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_an_idle_card_is_clean_in_two_seconds(engine_python: Path) -> None:
    looked(engine_python)  # a driver without persistence mode wakes up
    report = looked(engine_python)
    print(json.dumps({"figure": "preflight", "seconds": round(report.seconds, 3)}))
    print(json.dumps({"figure": "preflight facts", **report.to_json()}))
    assert report.verdict is Verdict.CLEAN, "\n".join(map(str, report.problems))
    assert report.seconds < 2.0
    assert report.census.cuda is not None
    assert report.census.cuda.code == 0


def test_a_process_with_10_gb_makes_it_dirty_and_its_end_clean_again(engine_python: Path) -> None:
    with holder(engine_python, HELD) as process:
        report = looked(engine_python)
        row = report.rows[0]
        print(json.dumps({"figure": "held", **report.to_json()}))
        assert report.verdict is Verdict.DIRTY
        assert row.used is not None
        assert HELD < row.used < HELD + 4 * GB
        (found,) = [f for f in report.findings if f.check == "memory.used"]
        if row.pid == process.pid:
            assert "-c" in row.command
            assert found.next == f"harness reclaim --pid {process.pid}"
        else:
            # A container that hides pids: told as such, and nobody here is blamed.
            assert "container" in found.found
            assert row.command == ""
    after = looked(engine_python, wait=BACK_S)
    assert after.verdict is Verdict.CLEAN, "\n".join(map(str, after.problems))


def test_a_killed_process_gives_its_memory_back_in_time(engine_python: Path) -> None:
    before = used_bytes(Probe(python=engine_python))
    with holder(engine_python, HELD):
        during = used_bytes(Probe(python=engine_python))
    assert any(during[index] > before[index] + HELD for index in before)
    started = time.monotonic()
    while max(_over(before, used_bytes(Probe(python=engine_python)))) > SLACK:
        assert time.monotonic() - started < BACK_S
        time.sleep(0.2)
    print(json.dumps({"figure": "memory back", "seconds": round(time.monotonic() - started, 2)}))


def _over(before: dict[int, int], now: dict[int, int]) -> list[int]:
    return [now[index] - before[index] for index in before]


def test_a_context_alone_is_seen(engine_python: Path) -> None:
    """The floor of `memory.used` lies under the smallest context, also where nobody is listed."""
    with holder(engine_python, 1):
        report = looked(engine_python)
    print(json.dumps({"figure": "bare context", "bytes": report.rows[0].used}))
    assert report.verdict is Verdict.DIRTY
    assert "memory.used" in {finding.check for finding in report.problems}


def test_the_census_tells_what_a_healthy_card_tells(gpu_census: Census) -> None:
    device = gpu_census.devices[0]
    assert device.memory is not None
    assert device.memory.reserved is not None
    assert device.name.startswith("NVIDIA")
    assert device.uuid.startswith("GPU-")
    assert (device.health.uncorrected, device.health.remap_pending) in ((0, False), (None, None))
    assert gpu_census.driver
    assert gpu_census.cuda_driver


def test_visible_devices_by_id_are_the_same_card(
    gpu_census: Census, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu_census.devices[0].uuid[:16])
    report = preflight(NEED)
    assert [row.used_by_engine for row in report.rows].count(True) == 1
    assert not [f for f in report.problems if f.check.startswith("devices.")]


ENGINE = """
import pytest

@pytest.mark.gpu
def test_engine(engine, clean_gpus):
    assert clean_gpus.verdict == "CLEAN"
    assert len(engine.hidden_states([[1, 2, 3]])) == 1
"""


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.usefixtures("free_gpus")
def test_memory_is_back_in_a_minute_after_a_session_with_an_engine(
    hs_settings: Settings, engine_python: Path, tmp_path: Path
) -> None:
    before = used_bytes(Probe(python=engine_python))
    (tmp_path / "test_inner.py").write_text(ENGINE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "harness.plugin", str(tmp_path)]
    command += [f"--hs-python={engine_python}", "--hs-layers", hs_settings.layers, "-m", "gpu"]
    command += ["--hs-gpu-memory-utilization=0.5", "--hs-require-gpu"]
    if hs_settings.model is not None:
        command += [f"--hs-model={hs_settings.model}"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0
    started = time.monotonic()
    report = look(NEED, probe=Probe(wait=BACK_S), python=engine_python)
    print(json.dumps({"figure": "after a session", "seconds": time.monotonic() - started}))
    assert report.verdict is Verdict.CLEAN, "\n".join(map(str, report.problems))
    now = used_bytes(Probe(python=engine_python))
    assert max(_over(before, now)) <= SLACK
