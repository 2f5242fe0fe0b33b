"""What the supervisor reads of processes, memory, code on disk and earlier loads."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness import state
from harness.host.deaths import stacks
from harness.host.processes import Process
from harness.host.supervision import code_on_disk, loads, pulse, room
from harness.host.supervision.aftermath import DeviceMemory
from harness.host.supervision.loads import Expected, LoadKind, clock
from harness.host.supervision.phases import LoadTrack, Phase, Sighting
from harness.host.supervision.pulse import DeviceReading, Devices, take, worked
from harness.host.supervision.room import GIB, MIB, LinuxRoom, Room, memory_floor, shortage

ENGINE = Process(pid=5, start=77)


def proc(
    root: Path,
    *,
    ticks: int = 0,
    waited: float = 0,
    faults: int = 0,
    storage: int = 0,
    start: int = 77,
) -> Path:
    """Write one process's files, of two threads that wait for a core."""
    folder = root / "5"
    for thread in ("5", "6"):
        (folder / "task" / thread).mkdir(parents=True, exist_ok=True)
        text = f"1 {int(waited * 1e9 / 2)} 1\n"
        (folder / "task" / thread / "schedstat").write_text(text)
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["S", *"12345678", str(faults), "0", str(ticks), "0", "0", "0"]
    fields += ["20", "0", "1", "0", str(start), "0"]
    (folder / "stat").write_text(f"5 (a) b) {' '.join(fields)}\n")
    (folder / "io").write_text(f"rchar: 9\nread_bytes: {storage}\nwrite_bytes: 0\n")
    return root


def test_process_works_when_it_uses_a_core_or_waits_for_one_or_reads(tmp_path: Path) -> None:
    before = take([ENGINE], 0.0, proc(tmp_path))
    for changes, expected in (
        ({}, False),
        ({"ticks": 9}, False),  # 0.09 s of 2 s
        ({"ticks": 11}, True),
        ({"waited": 0.09}, False),
        ({"waited": 0.11}, True),
        ({"storage": 4096}, True),
        ({"faults": 1}, True),
    ):
        after = take([ENGINE], 2.0, proc(tmp_path, **changes))
        assert worked(before, after) is expected, changes


def test_new_process_is_work_and_a_reused_pid_is_no_process_of_ours(tmp_path: Path) -> None:
    before = take([], 0.0, proc(tmp_path))
    assert worked(before, take([ENGINE], 2.0, proc(tmp_path)))
    assert take([ENGINE], 2.0, proc(tmp_path, start=78)).of == {}


def test_vitals_of_this_process_are_read() -> None:
    text = Path("/proc/self/stat").read_text()
    start = int(text[text.rfind(")") + 2 :].split()[19])
    found = pulse.vitals(Process(os.getpid(), start))
    assert found is not None
    assert found.core_s > 0


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"0": DeviceReading(5, 0)}, {"0": DeviceReading(5, 0)}, False),
        ({"0": DeviceReading(5, 0)}, {"0": DeviceReading(5, 1)}, True),
        ({"0": DeviceReading(5)}, {"0": DeviceReading(6)}, True),
        ({}, {}, False),
        (None, {}, None),
        ({}, None, None),
    ],
)
def test_devices_work_when_busy_or_when_their_memory_changes(
    before: Devices | None, after: Devices | None, expected: bool | None
) -> None:
    assert pulse.devices_worked(before, after) is expected


def machine(root: Path, *, version: int, limit: str, used: int, cache: int) -> LinuxRoom:
    """Write a machine of 64 GiB, 32 of them free, with a control group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")
    if version == 2:
        (root / "proc/self/cgroup").write_text("0::/box/inner\n")
        group = root / "sys/fs/cgroup/box"
        names = ("memory.max", "memory.current", "")
    else:
        (root / "proc/self/cgroup").write_text("9:name=systemd:/\n4:memory:/box/inner\n0::/\n")
        group = root / "sys/fs/cgroup/memory/box"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    (group / "inner").mkdir(parents=True)
    (group / names[0]).write_text(f"{limit}\n")
    (group / names[1]).write_text(f"{used}\n")
    (group / "memory.stat").write_text(
        f"{names[2]}inactive_file {cache}\n{names[2]}active_file 0\n{names[2]}shmem {GIB}\n"
    )
    return LinuxRoom(root)


@pytest.mark.parametrize("version", [1, 2])
def test_limit_of_a_control_group_above_counts_and_its_cache_is_free(
    tmp_path: Path, version: int
) -> None:
    found = machine(tmp_path, version=version, limit=str(8 * GIB), used=7 * GIB, cache=2 * GIB)
    left = found.room()
    assert (left.memory, left.memory_total) == (3 * GIB, 8 * GIB)


@pytest.mark.parametrize(("version", "limit"), [(1, str(2**63 - 4096)), (2, "max")])
def test_group_without_a_limit_leaves_the_host(tmp_path: Path, version: int, limit: str) -> None:
    left = machine(tmp_path, version=version, limit=limit, used=GIB, cache=0).room()
    assert (left.memory, left.memory_total) == (32 * GIB, 64 * GIB)
    assert left.shm is None


def test_room_of_this_machine_is_read() -> None:
    left = LinuxRoom().room()
    assert left.memory is not None
    assert left.memory_total is not None
    assert 0 < left.memory <= left.memory_total


def test_memory_is_short_below_one_percent_within_bounds() -> None:
    assert memory_floor(8 * GIB) == 128 * MIB
    assert memory_floor(100 * GIB) == GIB
    assert memory_floor(2048 * GIB) == 4 * GIB
    plenty = Room(GIB, 100 * GIB, None, None)
    assert shortage(plenty, plenty) is None
    short = shortage(Room(GIB - 1, 100 * GIB, None, None), plenty)
    assert short is not None
    assert short[0] == "memory"


def test_memory_that_cannot_be_read_is_not_called_short() -> None:
    nothing = Room(None, None, None, None)
    assert shortage(nothing, nothing) is None
    assert shortage(Room(None, None, 0, 0), nothing) is None


def test_code_counts_by_content_and_names_what_changed(tmp_path: Path) -> None:
    root = tmp_path / "patches"
    (root / "site").mkdir(parents=True)
    for name in ("a.py", "site/b.py", "c.py", "notes.txt"):
        (root / name).write_text("x = 1\n")
    start = code_on_disk.read([root])
    assert set(start.digests) == {"patches/a.py", "patches/site/b.py", "patches/c.py"}
    (root / "a.py").write_text("x = 1\n")  # touched
    os.utime(root / "a.py", (1, 1))
    (root / "notes.txt").write_text("other")
    assert code_on_disk.changed(start, [root]) == []
    (root / "site/b.py").write_text("x = 2\n")
    os.utime(root / "site/b.py", (1, 1))
    (root / "c.py").unlink()
    (root / "d.py").write_text("")
    assert code_on_disk.changed(start, [root]) == [
        "patches/c.py",
        "patches/d.py",
        "patches/site/b.py",
    ]
    assert code_on_disk.read([root]).digest != start.digest


def test_code_watched_is_what_runs_inside_of_an_engine() -> None:
    names = set(code_on_disk.read().digests)
    assert {"inside/worker.py", "inside/engine.py", "patches/__init__.py"} <= names


def test_expectation_is_the_last_load_or_the_size_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path))
    kind = LoadKind({"model": "m"}, bytes=540_000_000_000)
    assert loads.expect(None) is None
    assert loads.expect(LoadKind({"model": "m"})) is None
    by_size = loads.expect(kind)
    assert by_size is not None
    assert by_size.seconds == 1230
    track = LoadTrack(0.0)
    track.see(Sighting(Phase.WEIGHTS), 10.0)
    track.finish(100.0)
    loads.remember(kind, 100.0, track)
    again = loads.expect(kind)
    assert again is not None
    assert (again.seconds, dict(again.phases)) == (100.0, {"import": 10.0, "weights": 90.0})
    assert loads.expect(LoadKind({"model": "other"})) is None
    kind.path.write_text('{"seconds": "soon"}')
    assert loads.expect(kind) == by_size


def test_state_folder_that_cannot_be_written_costs_only_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(state.VARIABLE, str(tmp_path / "file" / "state"))
    loads.remember(LoadKind({"model": "m"}), 1.0, LoadTrack(0.0))


def test_only_so_many_loads_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path))
    monkeypatch.setattr(loads, "_KEPT", 3)
    for number in range(6):
        loads.remember(LoadKind({"model": number}), 1.0, LoadTrack(0.0))
    assert len(list((tmp_path / loads.FOLDER).iterdir())) == 3


def test_time_left_follows_the_shards_and_then_the_earlier_phases() -> None:
    expected = Expected(100.0, "", {"import": 10.0, "weights": 60.0, "warm-up": 30.0})
    track = LoadTrack(0.0)
    assert expected.left(track, 4.0) == pytest.approx(96.0)
    assert expected.left(track, 400.0) == pytest.approx(90.0)
    track.see(Sighting(Phase.WEIGHTS, 0, 4), 10.0)
    assert expected.left(track, 20.0) == pytest.approx(80.0)
    track.see(Sighting(Phase.WEIGHTS, 1, 4), 50.0)  # 40 s a shard
    assert expected.left(track, 50.0) == pytest.approx(120.0 + 30.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (130, "2:10"), (1200, "20:00"), (3661, "1:01:01")]
)
def test_time_is_written_as_minutes_and_seconds(seconds: float, text: str) -> None:
    assert clock(seconds) == text


class Driver:
    """GPUs whose memory falls to what is given, one reading after the other."""

    def __init__(self, *used: int | None) -> None:
        self.used = list(used)

    def read(self) -> Devices | None:
        used = self.used.pop(0) if len(self.used) > 1 else self.used[0]
        return None if used is None else {"GPU 2": DeviceReading(used)}


def memory_after(*used: int | None) -> str:
    """What is said of the GPU's memory; the first figure is that before the engine."""
    moment = [0.0]

    def sleep(seconds: float) -> None:
        moment[0] += seconds

    memory = DeviceMemory(Driver(*used), clock=lambda: moment[0], sleep=sleep)
    memory.note()
    memory._before._thread.join()  # type: ignore
    return memory.wait_until_back()


def test_memory_of_a_killed_engine_is_waited_for() -> None:
    assert memory_after(GIB, 70 * GIB, 30 * GIB, GIB) == "the GPUs' memory is back after 1.0 s"
    assert "back after 0.0 s" in memory_after(GIB, GIB + 256 * MIB)


def test_memory_that_stays_is_named_with_its_gpu() -> None:
    said = memory_after(0, 75_728 * MIB)
    assert "after 60 s memory is still held: GPU 2 75,728 MiB" in said
    assert "harness reclaim" in said


def test_memory_that_cannot_be_read_is_not_called_back() -> None:
    assert "unknown" in memory_after(None, GIB)
    assert "unknown" in memory_after(GIB, None)


def test_shared_memory_floor_is_above_a_segment_of_nccl() -> None:
    assert room.SHM_FLOOR > 7_340_384


def test_stacks_of_py_spy_go_to_the_log_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "engine.log"
    log.write_text("before\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert stacks.spy([ENGINE], log) == 0
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "py-spy"
    program.write_text('#!/bin/sh\necho "asked: $@"\n')
    program.chmod(0o755)
    assert stacks.spy([Process(5, 77, name="engine")], log) == 1
    assert log.read_text() == (
        "before\npy-spy dump of engine (pid 5):\nasked: dump --native --pid 5\n"
    )


def test_py_spy_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    begun = time.monotonic()
    stacks.spy([ENGINE, ENGINE, ENGINE], tmp_path / "log", seconds=0.3)
    assert time.monotonic() - begun < 3
