"""Ends: however the parent, the reaper or a test leaves, no descendant stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import EngineFailed
from harness.host import Host, processes
from harness.host.launch import Launched
from harness.host.processes import Process
from tests.unit import hosts

LIMIT_S = 5.0
ROOT = Path(__file__).parents[2]


class Parent:
    """A parent program with a host and a family of awkward descendants."""

    def __init__(self, folder: Path, leave: str, **environment: str) -> None:
        script = hosts.CHILDREN / "host_parent.py"
        self.program = subprocess.Popen(
            [sys.executable, str(script), str(folder / "log"), str(folder / "pids"), leave],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        assert self.program.stdout is not None
        line = self.program.stdout.readline()
        assert line, self.program.communicate()[1]
        self.facts: dict[str, Any] = json.loads(line)
        self.folder = Path(self.facts["folder"])

    def named(self) -> list[Process]:
        return hosts.named(self.facts["pids"])

    def clean(self, seconds: float = LIMIT_S) -> bool:
        """Wait for the private folder to go; whether it did."""
        until = time.monotonic() + seconds
        while self.folder.exists() and time.monotonic() < until:
            time.sleep(0.02)
        return not self.folder.exists()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    parents: list[Parent] = []

    def start(leave: str, **environment: str) -> Parent:
        parents.append(Parent(tmp_path, leave, **environment))
        return parents[-1]

    yield start
    for parent in parents:
        parent.program.kill()
        parent.program.communicate()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets; pytest's own are longer."""
    with tempfile.TemporaryDirectory(prefix="hs-", dir="/tmp") as folder:
        yield Path(folder)


def family(host: Host, folder: Path, **params: Any) -> list[Process]:
    pids = host.call("spawn_family", {"pids": str(folder / "pids"), **params}, deadline_s=30)
    assert len(pids["pids"]) == 5
    return hosts.named([host.pid, *pids["pids"]])


def wait_for_record(path: Path, everyone: list[Process]) -> None:
    until = time.monotonic() + 10
    text = ""
    while not all(str(process.pid) in text for process in everyone):
        assert time.monotonic() < until, text
        time.sleep(0.05)
        text = path.read_text() if path.exists() else ""


@pytest.mark.parametrize(("leave", "grace"), [("call", "2.0"), ("idle", "0.2")])
def test_sigkill_of_the_parent_leaves_no_descendant(started: Any, leave: str, grace: str) -> None:
    parent = started(leave, HOST_PARENT_GRACE=grace)
    everyone = parent.named()
    parent.program.kill()
    begun = time.monotonic()
    assert hosts.running_after(everyone, LIMIT_S) == []
    assert time.monotonic() - begun < LIMIT_S
    assert parent.clean()


def test_sigkill_of_the_parent_is_noticed_although_a_fork_of_it_holds_its_pipes(
    started: Any,
) -> None:
    parent = started("forked")
    everyone = parent.named()
    stranger = hosts.named([parent.facts["forked"]])
    parent.program.kill()
    try:
        assert hosts.running_after(everyone, LIMIT_S) == []
        assert hosts.running(stranger) == stranger
    finally:
        processes.send(stranger[0], signal.SIGKILL)


def test_sigkill_of_the_parent_leaves_no_shared_memory(started: Any) -> None:
    parent = started("memory")
    segment = Path("/dev/shm") / parent.facts["memory"]
    assert segment.exists()
    everyone = parent.named()
    parent.program.kill()
    assert hosts.running_after(everyone, LIMIT_S) == []
    until = time.monotonic() + 1
    while segment.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not segment.exists()


@pytest.mark.parametrize(
    ("number", "leave"),
    [(signal.SIGINT, "call"), (signal.SIGINT, "idle"), (signal.SIGTERM, "call")],
)
def test_signal_to_the_parent_leaves_no_descendant(
    started: Any, number: signal.Signals, leave: str
) -> None:
    parent = started(leave)
    everyone = parent.named()
    parent.program.send_signal(number)
    _, errors = parent.program.communicate(timeout=20)
    assert parent.program.returncode == -number
    assert number != signal.SIGINT or errors.rstrip().endswith("KeyboardInterrupt")
    assert hosts.running_after(everyone, LIMIT_S) == []
    assert parent.clean()


@pytest.mark.parametrize(
    ("leave", "code"), [("return", 0), ("raise", 1), ("with-raise", 1), ("_exit", 7)]
)
def test_exit_of_the_parent_leaves_no_descendant(started: Any, leave: str, code: int) -> None:
    parent = started(leave)
    everyone = parent.named() if leave == "_exit" else []
    _, errors = parent.program.communicate(timeout=20)
    assert parent.program.returncode == code
    assert code != 1 or errors.rstrip().endswith("RuntimeError: the parent's own fault")
    assert hosts.running_after(everyone, LIMIT_S) == []
    if leave != "_exit":
        # These waited for the end: nothing may run any more once the parent is gone.
        assert [pid for pid in parent.facts["pids"] if processes.read(pid)] == []
    assert parent.clean()


def test_host_that_is_dropped_ends_its_engine(started: Any) -> None:
    parent = started("dropped")
    assert parent.program.stdout.readline() == "collected\n"
    assert [pid for pid in parent.facts["pids"] if processes.read(pid)] == []
    assert not parent.folder.exists()


def test_fork_of_the_parent_that_exits_leaves_the_engine_alone(started: Any) -> None:
    parent = started("fork-exits")
    assert parent.facts["alive"] == {"still": "there"}
    assert parent.program.wait(20) == 0


def test_close_ends_the_family_and_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = short_folder
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    host = Host(hosts.spec(tmp_path))
    host.start(20)
    everyone = family(host, tmp_path)
    assert host._launched is not None
    folder = host._launched.folder
    assert list(scratch.iterdir()) == [folder]
    host.close()
    assert hosts.running(everyone) == []
    assert not folder.exists()
    assert list(scratch.iterdir()) == []
    host.close()


def test_close_lets_an_engine_without_leftovers_end_orderly_and_fast(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    host = Host(hosts.spec(tmp_path, env={"HOST_CHILD_SHUTDOWN_MARK": str(mark)}, grace_s=30))
    host.start(20)
    begun = time.monotonic()
    host.close()
    assert time.monotonic() - begun < 2
    assert mark.exists()
    assert host._launched is not None
    assert host._launched.exit_code == 0


def test_close_cuts_a_shutdown_that_hangs(tmp_path: Path) -> None:
    host = Host(hosts.spec(tmp_path, env={"HOST_CHILD_SHUTDOWN_HANGS": "1"}))
    host.start(20)
    engine = hosts.named([host.pid])
    begun = time.monotonic()
    host.close(deadline_s=0.5)
    assert time.monotonic() - begun < 3
    assert hosts.running(engine) == []


def test_engine_death_takes_the_whole_family_along(tmp_path: Path) -> None:
    with Host(hosts.spec(tmp_path)) as host:
        everyone = family(host, tmp_path)
        with pytest.raises(EngineFailed):
            host.call("crash", {"signal": "SIGKILL"}, deadline_s=10)
        assert hosts.running_after(everyone, LIMIT_S) == []


@pytest.mark.parametrize("keep_environment", [True, False])
def test_sigkill_of_the_reaper_leaves_no_descendant(tmp_path: Path, keep_environment: bool) -> None:
    with Host(hosts.spec(tmp_path)) as host:
        everyone = family(host, tmp_path, keep_environment=keep_environment)
        assert host._launched is not None
        if not keep_environment:
            # Without our mark in the environment only the recorded tree knows the orphans.
            wait_for_record(host._launched.folder / "tree.json", everyone)
        host._launched._reaper.send_signal(signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(EngineFailed) as caught:
            host.call("slow", {"seconds": 60}, deadline_s=60)
        assert time.monotonic() - begun < 2
        assert caught.value.failure.id == "host.reaper-died"
        assert hosts.running_after(everyone, LIMIT_S) == []


def test_engine_ends_with_its_reaper_although_nobody_looks(tmp_path: Path) -> None:
    (tmp_path / "mute.py").write_text("import time\nwhile True: time.sleep(1)\n")
    launched = Launched(hosts.spec(tmp_path, module="mute", env={"PYTHONPATH": str(tmp_path)}))
    try:
        until = time.monotonic() + 10
        while launched.engine is None and time.monotonic() < until:
            launched.wait_for_exit(0.05)
        assert launched.engine is not None
        engine = launched.engine
        assert processes.alive(engine)
        launched._reaper.kill()
        assert hosts.running_after([engine], 2) == []
    finally:
        launched.end()


def test_end_that_comes_together_with_the_order_is_heard(tmp_path: Path) -> None:
    """Ctrl-C right after the start: both lines are in the pipe before the reaper reads one."""
    status, theirs = os.pipe()
    ours, control = socket.socketpair()
    order = {
        "argv": [
            sys.executable,
            "-c",
            f"open({str(tmp_path / 'ran')!r}, 'w'); import time; time.sleep(60)",
        ],
        "env": {},
        "cwd": str(tmp_path),
        "control": control.fileno(),
        "status": theirs,
        "parent": os.getpid(),
        "private": str(tmp_path / "private"),
        "notes": str(tmp_path / "notes"),
        "tree": str(tmp_path / "tree.json"),
        "record": str(tmp_path / "record.json"),
        "grace_s": 0.2,
        "core_dumps": False,
    }
    program = ROOT / "harness" / "host" / "ending" / "reaper.py"
    with ours, control:
        reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program)],
            stdin=subprocess.PIPE,
            pass_fds=(control.fileno(), theirs),
        )
        os.close(theirs)
        assert reaper.stdin is not None
        reaper.stdin.write(json.dumps(order).encode() + b"\nend\n")
        reaper.stdin.flush()  # And it stays open, as a parent that waits keeps it.
        try:
            assert reaper.wait(LIMIT_S) == 0
        finally:
            reaper.kill()
            reaper.communicate()
    with os.fdopen(status) as said:
        assert [json.loads(line)["event"] for line in said] == ["ended"]
    assert not (tmp_path / "ran").exists()


def test_reaper_that_can_write_nothing_goes_on(tmp_path: Path) -> None:
    with Host(hosts.spec(tmp_path)) as host:
        assert host._launched is not None
        # As on a full disk: its record of the tree cannot be written.
        (host._launched.folder / "tree.new").mkdir()
        everyone = family(host, tmp_path)
        host.call("slow", {"seconds": 0.7}, deadline_s=20)
        assert host.alive
    assert hosts.running(everyone) == []


def test_end_of_the_lifeline_alone_ends_the_engine(tmp_path: Path) -> None:
    with Host(hosts.spec(tmp_path)) as host:
        engine = hosts.named([host.pid])
        assert host._launched is not None
        assert host._launched._reaper.stdin is not None
        host._launched._reaper.stdin.close()
        assert hosts.running_after(engine, 3) == []


def test_stopped_reaper_does_not_keep_the_engine_alive(tmp_path: Path) -> None:
    host = Host(hosts.spec(tmp_path, grace_s=0.2))
    host.start(20)
    everyone = family(host, tmp_path)
    assert host._launched is not None
    reaper = host._launched._reaper
    reaper.send_signal(signal.SIGSTOP)
    survivors = host._launched.end(deadline_s=0.5)
    assert survivors == []
    assert hosts.running(everyone) == []
    assert reaper.returncode is not None
    assert not host._launched.folder.exists()


def test_stopped_descendants_are_ended_too(tmp_path: Path) -> None:
    with Host(hosts.spec(tmp_path)) as host:
        everyone = family(host, tmp_path)
        for process in everyone:
            processes.send(process, signal.SIGSTOP)
        host.close(deadline_s=0.2)
    assert hosts.running(everyone) == []


def test_stranger_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        named = hosts.named([stranger.pid])
        with Host(hosts.spec(tmp_path)) as host:
            family(host, tmp_path)
            assert host._launched is not None
            assert stranger.pid not in {process.pid for process in host._launched.tree()}
        assert hosts.running(named) == named
    finally:
        stranger.kill()
        stranger.wait()
