"""Processes by pid and start time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.host import processes


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    code = "import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-S", "-c", code], env={"A_MARK": "1"}) as program:
        yield program
        program.kill()


def test_process_is_read_with_its_parent_and_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    found = processes.read(sleeper.pid)
    own = processes.read(os.getpid())
    assert found is not None
    assert own is not None
    assert found.parent == os.getpid()
    assert found.start >= own.start
    assert processes.alive(found)
    assert found in processes.descendants([os.getpid()])
    assert own not in processes.descendants([os.getpid()])


def test_name_with_brackets_and_spaces_does_not_shift_the_fields(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([str(program), "60"]) as running:
        until = time.monotonic() + 5
        found = processes.read(running.pid)
        while (found is None or found.name != "a) R 1 (b") and time.monotonic() < until:
            found = processes.read(running.pid)
        running.kill()
    assert found is not None
    assert found.name == "a) R 1 (b"
    assert found.parent == os.getpid()


def test_signal_goes_to_the_same_process_or_to_none(sleeper: subprocess.Popen[bytes]) -> None:
    found = processes.read(sleeper.pid)
    assert found is not None
    successor = replace(found, start=found.start + 1)
    assert not processes.alive(successor)
    assert not processes.send(successor, signal.SIGKILL)
    time.sleep(0.1)
    assert processes.alive(found)
    assert processes.send(found, signal.SIGKILL)
    sleeper.wait()
    assert not processes.alive(found)
    assert not processes.send(found, signal.SIGKILL)


def test_signal_without_pidfd_still_checks_the_start_time(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "not in this sandbox")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    found = processes.read(sleeper.pid)
    assert found is not None
    assert not processes.send(replace(found, start=1), signal.SIGKILL)
    assert processes.alive(found)
    assert processes.send(found, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL


def test_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    found = processes.read(sleeper.pid)
    assert found is not None
    sleeper.kill()
    until = time.monotonic() + 5
    while processes.alive(found) and time.monotonic() < until:
        time.sleep(0.01)
    assert not processes.alive(found)
    zombie = processes.read(sleeper.pid)
    assert zombie is not None
    assert zombie.ended


def test_processes_are_found_by_a_mark_in_their_environment(
    sleeper: subprocess.Popen[bytes],
) -> None:
    assert sleeper.pid in {process.pid for process in processes.marked("A_MARK=1")}
    assert sleeper.pid not in {process.pid for process in processes.marked("A_MARK=")}


def test_handler_of_a_process_is_seen_from_outside() -> None:
    found = processes.read(os.getpid())
    assert found is not None
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert processes.catches(found, signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert not processes.catches(found, signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
