"""Deaths: who died, of what, with which last words, within two seconds."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import EngineFailed
from harness.host import Host
from harness.host.deaths.notes import DeathNotes
from tests.unit import hosts

LIMIT_S = 2.0


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(hosts.spec(tmp_path)) as host:
        yield host


def timed_failure(host: Host, op: str, params: dict[str, Any]) -> tuple[EngineFailed, float]:
    begun = time.monotonic()
    with pytest.raises(EngineFailed) as caught:
        host.call(op, params, deadline_s=30)
    return caught.value, time.monotonic() - begun


def kill_later(pid: int, number: int, after: float) -> list[float]:
    """Send a signal from a thread; the moment of it is in the list afterwards."""
    moment: list[float] = []

    def kill() -> None:
        time.sleep(after)
        moment.append(time.monotonic())
        os.kill(pid, number)

    threading.Thread(target=kill).start()
    return moment


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_engine_death_by_signal_is_named_with_the_last_log_lines(host: Host, name: str) -> None:
    error, seconds = timed_failure(host, "crash", {"signal": name})
    assert seconds < LIMIT_S
    assert error.failure.id == "host.engine-died"
    assert f"killed by {name}" in error.failure.found
    assert "| about to crash" in error.failure.found
    assert error.details["signal"] == name
    assert error.details["exit_code"] == -signal.Signals[name]
    assert error.details["op"] == "crash"


def test_engine_killed_from_outside_while_a_call_waits_is_noticed_in_time(host: Host) -> None:
    moment = kill_later(host.pid, signal.SIGKILL, 0.4)
    error, _ = timed_failure(host, "slow", {"seconds": 60})
    assert time.monotonic() - moment[0] < LIMIT_S
    assert "SIGKILL" in error.failure.found


def test_crash_in_native_code_leaves_its_stack_in_the_log(host: Host) -> None:
    error, seconds = timed_failure(host, "crash_native", {})
    assert seconds < LIMIT_S
    assert error.details["signal"] == "SIGSEGV"
    assert "in crash_native" in host.spec.log.read_text()


@pytest.mark.parametrize("op", ["leave", "leave_politely"])
@pytest.mark.parametrize("code", [0, 3])
def test_engine_that_leaves_in_a_call_is_reported_with_its_exit_code(
    host: Host, op: str, code: int
) -> None:
    error, seconds = timed_failure(host, op, {"code": code})
    assert seconds < LIMIT_S
    assert error.failure.id == "host.engine-died"
    assert f"exit code {code}" in error.failure.found
    assert error.details["signal"] is None


def test_engine_that_died_between_calls_is_noticed_by_alive_and_by_the_next_call(
    host: Host,
) -> None:
    os.kill(host.pid, signal.SIGKILL)
    until = time.monotonic() + LIMIT_S
    while host.alive and time.monotonic() < until:
        time.sleep(0.01)
    assert not host.alive
    error, seconds = timed_failure(host, "echo", {})
    assert seconds < 0.5
    assert error.failure.id == "host.engine-died"
    assert error.details["signal"] == "SIGKILL"


def test_engine_that_hangs_up_but_goes_on_is_ended(host: Host) -> None:
    engine = hosts.named([host.pid])
    error, seconds = timed_failure(host, "hang_up", {})
    assert seconds < LIMIT_S
    assert error.failure.id == "host.protocol"
    assert hosts.running_after(engine, 5) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_death_is_named_although_the_engine_hangs_on_it(host: Host, method: str) -> None:
    worker = host.call("spawn_worker", {"method": method}, deadline_s=20)["pid"]
    engine = hosts.named([host.pid])
    error, seconds = timed_failure(host, "kill_worker", {"pid": worker, "signal": "SIGKILL"})
    assert seconds < LIMIT_S
    assert error.failure.id == "host.worker-died"
    assert f"Worker_TP0 (pid {worker}): killed by SIGKILL" in error.failure.found
    assert "| one worker less" in error.failure.found
    assert error.details["signal"] == "SIGKILL"
    assert hosts.running_after(engine, 5) == []


def test_worker_of_the_engine_core_is_named_across_two_processes(host: Host) -> None:
    pids = host.call("spawn_nested_worker", {"method": "spawn"}, deadline_s=20)
    params = {"pid": pids["worker"], "signal": "SIGSEGV"}
    error, seconds = timed_failure(host, "kill_worker", params)
    assert seconds < LIMIT_S
    assert f"Worker_TP1 (pid {pids['worker']}): killed by SIGSEGV" in error.failure.found


def test_worker_death_explains_the_error_that_the_engine_makes_of_it(host: Host) -> None:
    worker = host.call("spawn_worker", {}, deadline_s=20)["pid"]
    params = {"pid": worker, "signal": "SIGKILL", "raise": True}
    error, seconds = timed_failure(host, "kill_worker", params)
    assert seconds < LIMIT_S
    assert error.failure.id == "host.worker-died"
    assert "EngineDeadError" in error.details["traceback"]


def test_stopped_worker_is_told_long_before_the_deadline(host: Host) -> None:
    worker = host.call("spawn_worker", {}, deadline_s=20)["pid"]
    engine = hosts.named([host.pid])
    moment = kill_later(worker, signal.SIGSTOP, 0.1)
    error, _ = timed_failure(host, "slow", {"seconds": 20})
    assert 1.0 <= time.monotonic() - moment[0] < 3.0
    assert error.failure.id == "host.process-stopped"
    assert f"(pid {worker}): halted by SIGSTOP" in error.failure.found
    assert hosts.running_after(engine, 5) == []


def test_worker_that_is_stopped_for_a_moment_goes_on(host: Host) -> None:
    worker = host.call("spawn_worker", {}, deadline_s=20)["pid"]
    os.kill(worker, signal.SIGSTOP)
    kill_later(worker, signal.SIGCONT, 0.6)
    assert host.call("slow", {"seconds": 1.8}, deadline_s=20) == {}


def test_worker_that_leaves_in_silence_is_told(host: Host) -> None:
    params = {"code": 0, "collect": "later", "name": "VllmWorker-0", "stay": 20}
    error, seconds = timed_failure(host, "short_worker", params)
    assert seconds < 0.5 + LIMIT_S  # It leaves after half a second.
    assert error.failure.id == "host.worker-died"
    assert "VllmWorker-0" in error.failure.found
    assert "exit code 0" in error.failure.found


def test_worker_that_died_between_calls_fails_the_next_one(host: Host) -> None:
    worker = host.call("spawn_worker", {}, deadline_s=20)["pid"]
    os.kill(worker, signal.SIGKILL)
    time.sleep(1)
    error, seconds = timed_failure(host, "slow", {"seconds": 20})
    assert seconds < LIMIT_S
    assert error.failure.id == "host.worker-died"


def test_worker_that_its_owner_collects_as_it_ends_is_noted_with_its_code(host: Host) -> None:
    error, _ = timed_failure(host, "short_worker", {"code": 3, "collect": "at once", "stay": 20})
    assert error.failure.id == "host.worker-died"
    assert "Short" in error.failure.found
    assert "exit code 3" in error.failure.found


def test_death_is_noted_once_although_nobody_collects_the_worker(host: Host) -> None:
    error, _ = timed_failure(host, "short_worker", {"code": 3, "collect": "later", "stay": 20})
    assert host._launched is not None
    time.sleep(0.3)
    assert len(error.details["notes"]) == 1
    assert len(host._launched.notes.read_text().splitlines()) == 1


def test_watching_a_worker_leaves_its_exit_code_to_its_owner(host: Host) -> None:
    params = {"code": 0, "collect": "later"}
    assert host.call("short_worker", params, deadline_s=20) == {"exitcode": 0}
    assert host.call("echo", {}, deadline_s=5) == {}


def test_death_of_the_engine_is_not_blamed_on_the_workers_it_takes_along(tmp_path: Path) -> None:
    with Host(hosts.spec(tmp_path, grace_s=1.5)) as host:
        pids = host.call("spawn_nested_worker", {}, deadline_s=20)
        worker = hosts.named([pids["worker"]])
        os.kill(host.pid, signal.SIGKILL)
        assert hosts.running_after(worker, 3) == []
        assert host._launched is not None
        until = time.monotonic() + 3
        while not host._launched.notes.exists() and time.monotonic() < until:
            time.sleep(0.02)
        assert "Worker_TP1" in host._launched.notes.read_text()
        error, _ = timed_failure(host, "echo", {})
    assert error.failure.id == "host.engine-died"


def test_exit_of_the_engine_is_not_blamed_on_its_daemonic_workers(host: Host) -> None:
    host.call("spawn_daemonic_workers", {}, deadline_s=20)
    error, _ = timed_failure(host, "leave_politely", {"code": 3})
    assert error.failure.id == "host.engine-died"


def test_workers_ended_in_an_orderly_shutdown_are_no_deaths(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with Host(hosts.spec(tmp_path, env={"HOST_CHILD_SHUTDOWN_MARK": str(mark)})) as host:
        worker = hosts.named([host.call("spawn_worker", {}, deadline_s=20)["pid"]])
    assert mark.read_text() == "no deaths"
    assert hosts.running(worker) == []


def test_events_that_came_before_a_death_are_handed_on_first(host: Host) -> None:
    seen: list[dict[str, Any]] = []
    moment = kill_later(host.pid, signal.SIGKILL, 0.5)
    with pytest.raises(EngineFailed) as caught:
        host.call("count_forever", deadline_s=30, on_event=seen.append)
    assert time.monotonic() - moment[0] < LIMIT_S
    assert caught.value.failure.id == "host.engine-died"
    assert [event["number"] for event in seen] == list(range(len(seen)))


def test_note_is_read_only_when_whole_and_kept_when_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    notes = DeathNotes(path)
    assert notes.read() == []
    path.write_bytes(b'{"pid": 5, "name": "W", "exitcode": -9, "signal": "SIGKILL"}\n{"pid": 6')
    assert [str(note) for note in notes.read()] == ["W (pid 5): killed by SIGKILL"]
    path.write_bytes(b"\xff broken\n")
    assert len(notes.read()) == 1
