"""The lock of the GPUs: one session for each, whoever asks, and none for the dead."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import Refused
from harness.gpu_lock import GpuLock, gpus_of
from harness.host import Host, processes
from tests.unit import hosts

ROOT = Path(__file__).parents[2]
_HOLD = """
import os, sys, time
from pathlib import Path
from harness.gpu_lock import GpuLock
lock = GpuLock(sys.argv[2:], folder=Path(sys.argv[1]))
child = 0
if os.environ.get("FORK"):
    # Newer releases of filelock close their file in a fork; older ones and a copy keep it.
    for file in Path("/proc/self/fd").iterdir():
        if file.is_symlink() and str(file.readlink()).endswith(".lock"):
            os.dup(int(file.name))
    child = os.fork()
    if child == 0:
        time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""


class Session:
    """Another process that holds locks."""

    def __init__(self, folder: Path, *gpus: str, fork: bool = False) -> None:
        self.program = subprocess.Popen(
            [sys.executable, "-c", _HOLD, str(folder), *gpus],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **({"FORK": "1"} if fork else {})},
        )
        assert self.program.stdout is not None
        self.child = int(self.program.stdout.readline())

    @property
    def pid(self) -> int:
        return self.program.pid

    def kill(self) -> None:
        self.program.kill()
        self.program.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    other = Session(folder, "GPU-b")
    yield other
    other.kill()


def refused(folder: Path, *gpus: str) -> Refused:
    with pytest.raises(Refused) as caught:
        GpuLock(gpus, folder=folder)
    return caught.value


def test_second_session_is_refused_with_owner_command_and_time(
    folder: Path, session: Session
) -> None:
    failure = refused(folder, "GPU-a", "GPU-b").failure
    assert failure.id == "gpus.locked"
    assert f"pid {session.pid} of " in failure.found
    assert "since 20" in failure.found
    assert "-c" in failure.found
    assert "GPU GPU-b" in failure.where
    assert "CUDA_VISIBLE_DEVICES" in failure.next
    # The refused one holds nothing, and other GPUs are free.
    assert not (folder / "GPU-a.json").exists()
    with GpuLock(["GPU-a", "GPU-c"], folder=folder) as lock:
        assert lock.taken_over == []


def test_lock_that_was_given_back_can_be_taken_and_leaves_no_owner(folder: Path) -> None:
    with GpuLock(["GPU-a"], folder=folder):
        assert (folder / "GPU-a.json").exists()
    assert not (folder / "GPU-a.json").exists()
    GpuLock(["GPU-a"], folder=folder).release()


def test_owner_that_was_killed_is_no_obstacle_and_is_told(folder: Path, session: Session) -> None:
    session.kill()
    with GpuLock(["GPU-b"], folder=folder) as lock:
        (before,) = lock.taken_over
        assert before.process.pid == session.pid
        assert before.gone
        assert json.loads((folder / "GPU-b.json").read_text())["pid"] == os.getpid()


def test_lock_that_a_dead_owners_child_keeps_is_blamed_on_the_child(folder: Path) -> None:
    other = Session(folder, "GPU-b", fork=True)
    (child,) = hosts.named([other.child])
    other.kill()
    try:
        failure = refused(folder, "GPU-b").failure
        assert "it has ended, but" in failure.found
        assert f"(pid {other.child})" in failure.found
        assert failure.next == f"harness reclaim --pid {other.child}"
    finally:
        processes.send(child, signal.SIGKILL)


def test_own_second_lock_is_refused_as_ones_own(folder: Path) -> None:
    with GpuLock(["GPU-a"], folder=folder):
        assert "this very process" in refused(folder, "GPU-a").failure.found


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}'])
def test_owner_that_cannot_be_read_does_not_hide_the_lock(folder: Path, text: str) -> None:
    with GpuLock(["GPU-a"], folder=folder):
        (folder / "GPU-a.json").write_text(text)
        assert "not known" in refused(folder, "GPU-a").failure.found


def test_owner_in_another_container_is_not_judged_by_its_pid(folder: Path) -> None:
    with GpuLock(["GPU-a"], folder=folder):
        path = folder / "GPU-a.json"
        note = json.loads(path.read_text())
        note["machine"]["namespace"] = "pid:[7]"
        note["pid"] = 999_999
        path.write_text(json.dumps(note))
        assert "in another container" in refused(folder, "GPU-a").failure.found


def test_folder_where_no_lock_can_be_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    failure = refused(tmp_path / "file" / "locks", "GPU-a").failure
    assert failure.id == "gpus.lock-folder"
    assert "HARNESS_GPU_LOCKS" in failure.next


def test_locks_are_for_every_user_of_the_machine(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        with GpuLock(["GPU-a"], folder=folder):
            assert folder.stat().st_mode & 0o7777 == 0o777
            assert (folder / "GPU-a.lock").stat().st_mode & 0o777 == 0o666
            assert (folder / "GPU-a.json").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A box with four GPUs of which this container has three."""
    for number in range(4):
        entry = tmp_path / "driver" / f"0000:{number}1:00.0"
        entry.mkdir(parents=True)
        uuid = "GPU-????????" if number == 3 else f"GPU-{number}a{number}b"
        # Minor numbers need not follow the order of the bus.
        text = f"Model: \t H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {3 - number}\n"
        (entry / "information").write_text(text)
    for minor in (0, 1, 3):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / f"nvidia{minor}").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ("GPU-0a0b", "GPU-2a2b", "index-2")),
        ("", ()),
        ("1", ("GPU-2a2b",)),
        ("2,0", ("GPU-0a0b", "index-2")),
        ("7", ("index-7",)),
        ("GPU-2a", ("GPU-2a2b",)),
        ("GPU-", ("GPU-",)),
        ("MIG-GPU-0a0b/1/2", ("MIG-GPU-0a0b_1_2",)),
    ],
)
def test_gpus_are_named_by_uuid_where_it_is_known(
    box: Path, visible: str | None, names: tuple[str, ...]
) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpus_of(environment, driver=box / "driver", nodes=box / "dev") == names


def test_gpus_of_a_box_that_tells_nothing_are_one_set(tmp_path: Path) -> None:
    assert gpus_of({}, driver=tmp_path / "no", nodes=tmp_path) == ("all",)
    environment = {"CUDA_VISIBLE_DEVICES": "1,0"}
    assert gpus_of(environment, driver=tmp_path / "no", nodes=tmp_path) == ("index-0", "index-1")


def test_engine_on_gpus_holds_their_locks_until_it_is_gone(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.extraction._locked import LockedHost

    monkeypatch.setenv("HARNESS_GPU_LOCKS", str(folder))
    spec = hosts.spec(tmp_path, env={"CUDA_VISIBLE_DEVICES": "MIG-x"})
    with LockedHost(spec) as host:
        engine = hosts.named([host.pid])
        second = LockedHost(spec)
        with pytest.raises(Refused, match="this very process"):
            second.start(10)
        assert second.pid == 0
        assert isinstance(host, Host)
    assert hosts.running(engine) == []
    GpuLock(["MIG-x"], folder=folder).release()


def test_engine_that_does_not_start_gives_its_locks_back(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.extraction._locked import LockedHost

    monkeypatch.setenv("HARNESS_GPU_LOCKS", str(folder))
    host = LockedHost(hosts.spec(tmp_path, python=tmp_path / "none"))
    with pytest.raises(Refused, match=r"host.no-interpreter"):
        host.start(10)
    GpuLock(gpus_of({**os.environ, **host.spec.env}), folder=folder).release()
