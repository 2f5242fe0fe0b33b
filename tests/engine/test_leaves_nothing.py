"""A real engine with two workers that is killed, halted or interrupted leaves nothing behind.

The stub of ``tests/unit/fault_matrix.py`` has all twelve faults; these four hold what only vLLM
itself can show: its processes' names, sockets, shared memory and temporary files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import state
from harness.errors import EngineFailed
from harness.extraction import EngineOptions, open_session
from harness.extraction.plan import plan_engine
from harness.host import processes
from harness.host.leftovers import shared
from harness.host.leftovers.record import TOKEN, open_records, recorded
from harness.host.processes import Process

pytestmark = [pytest.mark.engine, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


class Surroundings:
    """What is around an engine, all of this test's own."""

    def __init__(self, folder: Path) -> None:
        self.temporary = folder
        self.everyone: list[Process] = []
        self.segments: set[str] = set()
        # Other tests of this session may keep engines of their own.
        self._others = {record.token for record in open_records()}

    def note(self) -> None:
        """Note all processes and all shared memory of the engine that runs."""
        ((_, record),) = recorded()
        assert record is not None
        assert record.reaper is not None
        found = processes.marked(f"{TOKEN}={record.token}")
        # vLLM sets titles; the mark must survive that.
        assert sum(process.name.startswith("VLLM::") for process in found) >= 3, found
        self.everyone = [record.reaper, *processes.descendants([record.reaper.pid])]
        self.segments = shared.used_by(process.pid for process in self.everyone)
        assert self.segments
        sockets = [path for path in Path(record.folder).rglob("*") if path.is_socket()]
        assert sockets
        assert Path(record.folder).parent == self.temporary

    def left(self, seconds: float) -> list[str]:
        """Return what is still there after at most so many seconds."""
        until = time.monotonic() + seconds
        while True:
            left = [str(p) for p in self.everyone if processes.alive(p)]
            left += sorted(self.segments & set(shared.present()))
            left += [f"record {path}" for path, _ in recorded()]
            opened = {record.token for record in open_records()} - self._others
            left += [f"open {token}" for token in sorted(opened)]
            left += [p.name for p in self.temporary.iterdir() if "torchinductor" not in p.name]
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.05)


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path / "state"))
    folder = Path(tempfile.mkdtemp(prefix="hs-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield Surroundings(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("number", "id", "limit_s"),
    [(signal.SIGKILL, "host.worker-died", 2.0), (signal.SIGSTOP, "host.process-stopped", 5.0)],
)
def test_struck_worker_ends_the_engine_in_time_and_without_remains(
    number: signal.Signals,
    id: str,
    limit_s: float,
    tiny_wrapper: Path,
    tmp_path: Path,
    around: Surroundings,
) -> None:
    options = EngineOptions(
        model=tiny_wrapper, layers="1,3", dtype="float32", tensor_parallel_size=2
    )
    plan = plan_engine(options, longest_prompt=100, spool=tmp_path / "spool")
    moment: list[float] = []

    def strike(pid: int) -> None:
        time.sleep(1.0)
        moment.append(time.monotonic())
        os.kill(pid, number)

    with open_session(plan, log=tmp_path / "engine.log") as session:
        victim = session.load().workers[1]["pid"]
        around.note()
        threading.Thread(target=strike, args=(victim,)).start()
        with pytest.raises(EngineFailed) as caught:
            session.plain([[1, 2, 3]] * 8, repeats=1_000_000)
        noticed = time.monotonic() - moment[0]
    print(json.dumps({"signal": number.name, "seconds": round(noticed, 3)}))
    assert caught.value.failure.id == id
    assert f"pid {victim}" in caught.value.failure.found
    assert noticed < limit_s
    assert around.left(seconds=1.0) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_struck_parent_takes_the_engine_along(
    number: signal.Signals, tiny_wrapper: Path, tmp_path: Path, around: Surroundings
) -> None:
    script = Path(__file__).parent / "_scripts" / "parent_of_engine.py"
    with subprocess.Popen(
        [sys.executable, str(script), str(tiny_wrapper), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        assert parent.stdout is not None
        assert len(json.loads(parent.stdout.readline())) == 2
        around.note()
        time.sleep(1.0)
        begun = time.monotonic()
        parent.send_signal(number)
        # The engine has its two seconds of grace.
        left = around.left(seconds=10.0)
        seconds = time.monotonic() - begun
        if left:
            parent.kill()
        _, errors = parent.communicate(timeout=30)
    print(json.dumps({"parent": number.name, "seconds until all is gone": round(seconds, 3)}))
    assert left == []
    if number == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")
    else:
        assert "which had started this engine, is gone" in (tmp_path / "engine.log").read_text()
