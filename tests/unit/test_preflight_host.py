"""What preflight reads of the machine around the GPUs, and of its processes."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import state
from harness.host import processes
from harness.host.leftovers.record import TOKEN
from harness.preflight import _host, _processes
from harness.preflight._check import Scene
from harness.preflight._check_host import CHECKS
from harness.preflight._host import look
from harness.preflight._owners import OwnerKind, owners
from harness.preflight._processes import SystemProcesses
from harness.preflight._visible import resolve
from harness.preflight.facts import Census, Device, Holder
from harness.preflight.need import Need
from harness.preflight.verdict import Verdict

GIB = 1 << 30
UNLIMITED = 9223372036854771712  # what version 1 says where there is no limit


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def memory(root: Path, group: str, files: dict[str, str]) -> tuple[int | None, int | None]:
    write(root, proc__meminfo=f"MemTotal: 9 kB\nMemAvailable:  {100 << 20} kB\n")
    write(root, proc__self__cgroup=group)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    facts = look({}, root=root)
    return facts.memory_free, facts.memory_limit


def test_memory_without_a_limit_is_what_the_kernel_says(tmp_path: Path) -> None:
    assert memory(tmp_path, "0::/a\n", {"a/memory.max": "max\n"}) == (100 * GIB, None)
    assert look({}, root=tmp_path / "nowhere").memory_free is None


def test_the_limit_of_any_group_above_bounds_memory(tmp_path: Path) -> None:
    files = {
        "a/b/memory.max": f"{60 * GIB}\n",
        "a/b/memory.current": f"{10 * GIB}\n",
        "a/memory.max": f"{30 * GIB}\n",
        "a/memory.current": f"{25 * GIB}\n",
        "a/memory.stat": f"anon 1\ninactive_file {5 * GIB}\n",
    }
    # 30 of which 25 are used, 5 of these by the page cache.
    assert memory(tmp_path, "0::/a/b\n", files) == (10 * GIB, 30 * GIB)


def test_a_limit_above_what_the_host_has_left_bounds_nothing(tmp_path: Path) -> None:
    files = {"a/memory.max": f"{500 * GIB}\n", "a/memory.current": f"{GIB}\n"}
    assert memory(tmp_path, "0::/a\n", files) == (100 * GIB, 500 * GIB)


def test_groups_of_version_1_count_too(tmp_path: Path) -> None:
    files = {
        "memory/docker/x/memory.limit_in_bytes": f"{20 * GIB}\n",
        "memory/docker/x/memory.usage_in_bytes": f"{4 * GIB}\n",
        "memory/memory.limit_in_bytes": f"{UNLIMITED}\n",
    }
    group = "11:cpu,memory:/docker/x\n3:devices:/y\n"
    assert memory(tmp_path, group, files) == (16 * GIB, 20 * GIB)


def test_a_containers_own_root_is_where_its_limit_stands(tmp_path: Path) -> None:
    files = {"memory.max": f"{8 * GIB}\n", "memory.current": f"{GIB}\n"}
    assert memory(tmp_path, "0::/\n", files) == (7 * GIB, 8 * GIB)


def shared(root: Path, name: str, *, age: float, size: int = 4096) -> Path:
    path = root / "dev/shm" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_stale_files_are_old_ones_of_engines_that_nobody_maps(tmp_path: Path) -> None:
    mapped = shared(tmp_path, "psm_mapped", age=900)
    lost = shared(tmp_path, "psm_lost", age=900, size=8192)
    shared(tmp_path, "nccl-young", age=1)
    shared(tmp_path, "somebody_elses", age=900)
    (tmp_path / "proc/77/fd").mkdir(parents=True)
    line = f"7f00-7f01 rw-s 00000000 00:01 {mapped.stat().st_ino}   /dev/shm/psm_mapped\n"
    (tmp_path / "proc/77/maps").write_text(line)
    (file,) = look({}, root=tmp_path).stale
    assert (file.path, file.bytes) == (lost, lost.stat().st_blocks * 512)
    assert 800 < file.age < 1000


def test_a_real_file_is_stale_when_its_last_holder_has_closed_it() -> None:
    path = Path("/dev/shm") / f"psm_harness-test-{os.getpid()}"

    def stale() -> bool:
        os.utime(path, (time.time() - 900,) * 2)
        return path in [file.path for file in look({}).stale]

    try:
        with path.open("wb"):
            assert not stale()
        with path.open("r+b") as file:
            file.truncate(4096)
            mapping = mmap.mmap(file.fileno(), 4096)
        assert not stale()
        mapping.close()
        assert stale()
    finally:
        path.unlink()


def test_files_of_a_user_whose_processes_are_hidden_are_not_called_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared(tmp_path, "psm_lost", age=900)
    monkeypatch.setattr(_host, "_held", lambda root: (set(), {os.getuid()}))
    assert look({}, root=tmp_path).stale == ()


def test_the_gpus_of_the_driver_and_the_boards_on_the_bus_are_counted(tmp_path: Path) -> None:
    for bus in "abc":
        (tmp_path / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
        write(tmp_path, **{f"sys__bus__pci__devices__{bus}__vendor": "0x10de\n"})
        write(tmp_path, **{f"sys__bus__pci__devices__{bus}__class": "0x030200\n"})
    # A GPU brings a sound device as well, and another maker's board is none of ours.
    write(tmp_path, sys__bus__pci__devices__d__vendor="0x10de\n")
    write(tmp_path, sys__bus__pci__devices__d__class="0x040300\n")
    write(tmp_path, sys__bus__pci__devices__e__vendor="0x1002\n")
    write(tmp_path, sys__bus__pci__devices__e__class="0x030000\n")
    write(tmp_path, dev__nvidia0="", dev__nvidia2="", dev__nvidiactl="")
    write(tmp_path, sys__module__nvidia__version="580.95.05\n")
    facts = look({}, root=tmp_path)
    assert (facts.gpus, facts.boards, facts.module) == (2, 3, "580.95.05")


def test_a_named_port_is_taken_as_long_as_somebody_listens() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        named = {"VLLM_PORT": str(other.getsockname()[1]), "MASTER_PORT": "none"}
        assert look(named).taken == (f"VLLM_PORT={named['VLLM_PORT']}",)
    assert look(named).taken == ()
    assert look({}).loopback == ""


@pytest.mark.parametrize(
    ("place", "says"),
    [("/proc/x", "without any space"), ("file/x", "is a file"), ("closed/x", "may not be written")],
)
def test_a_place_where_nothing_can_be_made_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, says: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir()
    access = os.access  # root may write everywhere
    monkeypatch.setattr(os, "access", lambda p, how: Path(p).name != "closed" and access(p, how))
    out = tmp_path / place
    facts = look({}, disk=out)
    assert says in facts.disk_problem
    census = Census()
    scene = Scene(census, resolve(census, {}), SystemProcesses(), facts, Need(disk=out))
    (found,) = [one for check in CHECKS if check.id == "host.disk" for one in check.judge(scene)]
    assert (found.verdict, found.next) == (Verdict.DIRTY, "another --out")
    assert says in found.found
    assert str(out.parent) in found.found


@pytest.mark.parametrize("name", ["vllm_a", "psm_b", "nccl-c", "torch_1_2", "sem.mp-d"])
def test_every_kind_of_file_that_is_counted_as_stale_is_named_in_the_check(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path, **{f"dev__shm__{name.replace('.', '_dot_')}": "x"})
    os.utime(tmp_path / "dev/shm" / name, (0, 0))
    assert [file.path.name for file in look({}, root=tmp_path).stale] == [name]
    (check,) = [check for check in CHECKS if check.id == "host.stale"]
    words = check.what.split("(")[1].split(")")[0].split(", ")
    assert any(name.startswith(word.rstrip("*")) for word in words)


def test_a_disk_is_asked_where_the_folder_will_be(tmp_path: Path) -> None:
    facts = look({}, disk=tmp_path / "not" / "yet")
    assert facts.disk_place == tmp_path
    assert facts.disk_free is not None
    assert not (tmp_path / "not").exists()


class Proc:
    """A process table in a folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        monkeypatch.setattr(_processes, "_PROC", root)
        monkeypatch.setattr(processes, "_PROC", root)
        monkeypatch.setenv(state.VARIABLE, str(root / "state"))
        self.namespace("pid:[4026531836]")

    def namespace(self, name: str) -> None:
        link = self._root / "self/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def add(self, pid: int, *, opens: str = "/dev/null", **files: str) -> None:
        folder = self._root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fd/5").symlink_to(opens)
        numbers = " ".join(["0"] * 17)
        told = {
            "stat": f"{pid} (name) S 1 {numbers} 4711 0 0\n",
            "cmdline": "python\0serve.py\0",
            "status": "Name: name\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n",
            "environ": "A=1\0",
            **files,
        }
        for name, text in told.items():
            (folder / name).write_text(text)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    return Proc(tmp_path, monkeypatch)


def owner(*holders: Holder, minor: int | None = 0) -> tuple[OwnerKind, int | None]:
    device = Device(0, minor=minor, holders=holders)
    found = owners(device, SystemProcesses(), look_further=True)
    return (found[0].kind, found[0].pid) if found else (OwnerKind.NONE, None)


def test_a_listed_pid_is_believed_where_pids_are_the_hosts(proc: Proc) -> None:
    proc.add(7)
    facts = SystemProcesses().find(7)
    assert facts is not None
    assert (facts.command, facts.start, facts.parent, facts.ours) == (
        "python serve.py",
        4711,
        1,
        False,
    )
    assert owner(Holder(7, "compute")) == (OwnerKind.LIVE, 7)
    assert owner(Holder(8, "compute")) == (OwnerKind.VANISHED, 8)


def test_in_a_container_a_pid_is_believed_only_where_the_device_is_open(proc: Proc) -> None:
    proc.namespace("pid:[4026532001]")
    proc.add(7, opens="/dev/nvidiactl")
    proc.add(9, opens="/dev/nvidia3")
    assert owner(Holder(7, "compute")) == (OwnerKind.HIDDEN, 7)
    assert owner(Holder(9, "compute")) == (OwnerKind.LIVE, 9)
    # A strange pid in the list, and a process here with the device's file open.
    assert owner(Holder(7, "compute"), minor=3) == (OwnerKind.LIVE, 9)


def test_an_empty_list_is_explained_by_who_has_the_device_open(proc: Proc) -> None:
    proc.add(9, opens="/dev/nvidia3")
    proc.add(10, opens="/dev/nvidia33")
    assert owner(minor=3) == (OwnerKind.LIVE, 9)
    assert owner(minor=4) == (OwnerKind.NONE, None)
    assert owner(minor=None) == (OwnerKind.NONE, None)


def test_a_process_of_ours_is_known_by_its_mark_or_by_a_record(proc: Proc, tmp_path: Path) -> None:
    proc.add(7, environ=f"A=1\0{TOKEN}=cafe\0")
    proc.add(8)
    proc.add(9)
    folder = tmp_path / "state" / state.ENGINES
    # The second one is another process of a pid that was used before.
    state.write_record(folder / "a.json", {"processes": [{"pid": 8, "start": 4711}]})
    state.write_record(folder / "b.json", {"engine": {"pid": 9, "start": 1}})
    kinds = [owner(Holder(pid, "compute"))[0] for pid in (7, 8, 9)]
    assert kinds == [OwnerKind.OURS, OwnerKind.OURS, OwnerKind.LIVE]


def test_a_process_that_was_killed_and_stays_is_stuck(proc: Proc) -> None:
    proc.add(7, status="SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n")
    proc.add(8, status="SigPnd:\t0000000000004000\nShdPnd:\t0000000000004000\n")
    assert owner(Holder(7, "compute"))[0] is OwnerKind.STUCK
    assert owner(Holder(8, "compute"))[0] is OwnerKind.LIVE


def test_real_processes_are_read() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        stdin=-1,
        stdout=-1,
    ) as child:
        assert child.stdout is not None
        # Until then its command line may still be that of the program which started it.
        child.stdout.readline()
        facts = SystemProcesses().find(child.pid)
        child.kill()
        until = time.monotonic() + 5
        zombie = SystemProcesses().find(child.pid)
        while zombie is not None and zombie.state != "Z" and time.monotonic() < until:
            time.sleep(0.01)
            zombie = SystemProcesses().find(child.pid)
    assert facts is not None
    assert zombie is not None
    assert (facts.parent, zombie.state) == (os.getpid(), "Z")
    assert "sys.stdin.read" in facts.command
    assert 0 <= facts.age < 60
    assert facts.opens_gpu is False
    assert SystemProcesses().find(child.pid) is None
