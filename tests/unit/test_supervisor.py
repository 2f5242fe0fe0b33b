"""The supervisor: what is cut, what is only told, what is left alone.

Most tests move its clock by hand (``Bench``); those that need processes have a stub engine
(``Watched``).
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness import state
from harness.errors import EngineFailed, UsageError
from harness.host import Host
from harness.host.log import Log
from harness.host.processes import Process
from harness.host.supervision import code_on_disk
from harness.host.supervision.loads import LoadKind
from harness.host.supervision.policy import (
    DEFAULT_ACTIONS,
    STALL_S,
    Action,
    Danger,
    LoadProgress,
    Supervision,
    read_actions,
)
from harness.host.supervision.pulse import DeviceReading
from harness.host.supervision.room import GIB, MIB, LinuxRoom, Room
from harness.host.supervision.supervisor import Supervisor
from harness.host.watch import Call, Cut
from harness.settings import Settings
from tests.unit import hosts

LIMIT_S = 2.0
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
WAITING = (
    "INFO 11-29 23:27:45 [shm_broadcast.py:542] No available shared memory broadcast block found "
    "in 60 seconds."
)
RAISED = "(Worker_TP0 pid=7) ERROR 11-29 23:00:00 [multiproc_executor.py:953] "
PLENTY = Room(memory=100 * GIB, memory_total=200 * GIB, shm=GIB, shm_total=GIB)
LOW_MEMORY = Room(memory=GIB // 16, memory_total=8 * GIB, shm=GIB, shm_total=GIB)
LOW_SHM = Room(memory=100 * GIB, memory_total=200 * GIB, shm=MIB, shm_total=64 * MIB)


class FakeMachine:
    """Has so much room: what is given first at the start, then the last one."""

    def __init__(self, *rooms: Room) -> None:
        self.rooms = list(rooms)

    def room(self) -> Room:
        return self.rooms.pop(0) if len(self.rooms) > 1 else self.rooms[0]


class FakeDevices:
    """GPUs of given readings, one after the other; the last one stays."""

    def __init__(self, *readings: Mapping[str, DeviceReading] | None) -> None:
        self.readings = list(readings)

    def read(self) -> Mapping[str, DeviceReading] | None:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


class Bench:
    """A supervisor whose engine is a log file, and whose clock is moved by hand."""

    tree: ClassVar[list[Process]] = []

    def __init__(self, folder: Path, op: str = "load", **options: Any) -> None:
        self.progress: list[LoadProgress] = []
        self.warnings: list[str] = []
        self.log = folder / "engine.log"
        self.log.touch()
        self.now = 0.0
        self.cut: Cut | None = None
        supervision = Supervision(
            actions=read_actions(options.pop("policy", "")),
            stall_s=options.pop("stall_s", 300.0),
            on_progress=self.progress.append,
            on_warning=self.warnings.append,
        )
        options = {"machine": FakeMachine(PLENTY), "code": (), **options}
        self.supervisor = Supervisor(supervision, **options)
        self.call(op)

    def call(self, op: str) -> None:
        """Begin a call."""
        self.supervisor.begin(Call(op, self.now, Log(self.log), lambda: self.tree))

    def write(self, *lines: str) -> None:
        """Let the engine log."""
        with self.log.open("a") as file:
            file.writelines(line + "\n" for line in lines)

    def wait(self, seconds: float, *, pause: float = 0.0, step: float = 0.25) -> Bench:
        """Look until so many seconds are over, or the engine is cut."""
        until = self.now + seconds
        while self.now < until and self.cut is None:
            self.now += step
            self.cut = self.supervisor.look(self.now)
            time.sleep(pause)
        return self

    def finish(self) -> None:
        """The call returns."""
        self.supervisor.done(self.now)

    @property
    def danger(self) -> str:
        """Of what it was cut; empty for not."""
        return "" if self.cut is None else str(self.cut.details["danger"])


class Watched:
    """A stub engine under a supervisor, and what the supervisor said."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.progress: list[LoadProgress] = []
        self.warnings: list[str] = []
        supervision = Supervision(
            actions=options.pop("actions", read_actions("")),
            stall_s=options.pop("stall_s", 60.0),
            on_progress=self.progress.append,
            on_warning=self.warnings.append,
        )
        options = {"machine": FakeMachine(PLENTY), "code": (), "every_s": 0.2, **options}
        self.supervisor = Supervisor(supervision, **options)
        self.host = Host(hosts.spec(folder, cwd=folder), self.supervisor)
        self.seconds = 0.0

    def __enter__(self) -> Watched:
        self.host.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.host.close()

    def load(self, lines: Sequence[str] = (), **params: Any) -> EngineFailed | None:
        """Load; the error, if any."""
        begun = time.monotonic()
        try:
            self.host.call("load", {"lines": list(lines), **params}, deadline_s=20)
        except EngineFailed as error:
            return error
        finally:
            self.seconds = time.monotonic() - begun
        return None

    def doomed(self, lines: Sequence[str] = (), **params: Any) -> EngineFailed:
        """Load, and expect it to be cut."""
        error = self.load(lines, **{"seconds": 15, **params})
        assert error is not None
        assert error.failure.id == "host.doomed", error
        return error


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path / "state"))


@pytest.fixture(autouse=True, scope="module")
def sleeper() -> Iterator[None]:
    """Stands for the engine's processes on the bench: one that does nothing."""
    process = subprocess.Popen(["sleep", "600"])
    Bench.tree = hosts.named([process.pid])
    yield
    process.kill()
    process.wait()


# With a stub engine.


@pytest.mark.parametrize("worker", [False, True])
def test_fatal_line_cuts_the_engine_and_all_its_processes_within_two_seconds(
    tmp_path: Path, worker: bool
) -> None:
    with Watched(tmp_path) as watched:
        engine = hosts.named([watched.host.pid])
        error = watched.doomed([f"(Worker_TP1 pid=77) {OOM}"], worker=worker)
        assert watched.seconds < LIMIT_S
        # Not begun, but done: the error comes when nothing is left.
        assert hosts.running(engine) == []
        with pytest.raises(EngineFailed, match=r"host\.doomed") as later:
            watched.host.call("echo", deadline_s=5)
    assert later.value.failure.id == "host.failed-before"
    assert "killed at 0:0" in error.failure.found
    assert f"Worker_TP1 (pid 77) says: {OOM}" in error.failure.found
    assert "its processes are gone" in error.failure.where
    assert error.details["fatal"] == "gpu-out-of-memory"
    assert error.details["danger"] == "line"


def test_stall_while_idle_is_cut(tmp_path: Path) -> None:
    with Watched(tmp_path, stall_s=0.6) as watched:
        error = watched.doomed(["Starting to load model /m..."], seconds=15)
        # On a crowded machine an idle process waits for its core, which counts as life.
        assert 0.6 <= watched.seconds < 10
    assert error.details["danger"] == "stall"
    assert error.details["phase"] == "download check"
    assert "no sign of life" in error.failure.found


def test_stall_while_busy_is_not_cut(tmp_path: Path) -> None:
    with Watched(tmp_path, stall_s=1.2) as watched:
        assert watched.load(seconds=2.0, then="spin") is None
    assert watched.warnings == []


def test_load_that_fails_by_itself_tells_where_it_was_and_its_known_cause(tmp_path: Path) -> None:
    kind = LoadKind({"model": "m"}, bytes=450_000_000)
    lines = [
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 25.69it/s]",
        OOM,
    ]
    with Watched(tmp_path, kind=kind, actions=read_actions("off")) as watched:
        error = watched.load(lines, seconds=5, then="raise")
    assert error is not None
    assert error.failure.id == "engine.error"
    assert error.details["fatal"] == "gpu-out-of-memory"
    assert error.details["saved_seconds"] > 25
    assert "in weights 1 of 2" in error.failure.where
    assert "known: a GPU has no room" in error.failure.where
    assert not kind.path.exists()


# By hand.


def test_exception_behind_a_general_line_is_the_one_that_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(f"{RAISED}WorkerProc failed to start.", f"{RAISED}ValueError: no such layer")
    bench.wait(2)
    assert bench.cut is not None
    assert bench.cut.details["fatal"] == "worker-failed"
    assert "ValueError: no such layer" in bench.cut.found
    assert bench.now <= LIMIT_S


def test_kind_that_says_what_failed_is_preferred_to_one_that_says_that_something_did(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.write(f"{RAISED}WorkerProc failed to start.")
    bench.wait(0.25)
    assert bench.cut is None
    bench.write(f"{RAISED}{OOM}")
    bench.wait(2)
    assert bench.cut is not None
    assert bench.cut.details["fatal"] == "gpu-out-of-memory"


def test_fatal_line_is_cut_in_time_though_the_log_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(OOM)
    while bench.cut is None and bench.now < 10:
        bench.write("another rank is chatty")
        bench.wait(0.25)
    assert bench.danger == "line"
    assert bench.now <= LIMIT_S


def test_question_on_standard_input_is_fatal_although_its_line_never_ends(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.log.write_text("Do you wish to run the custom code? [y/N] ")
    bench.wait(5)
    assert bench.cut is not None
    assert bench.cut.details["fatal"] == "remote-code"
    assert bench.now <= LIMIT_S


def test_informational_line_is_left_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(WAITING)
    bench.wait(100)
    assert bench.cut is None
    assert bench.warnings == []


def test_fatal_line_is_only_told_and_once_where_the_policy_says_warn(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy="line=warn")
    bench.write(OOM)
    bench.wait(10)
    assert bench.cut is None
    assert len(bench.warnings) == 1
    assert OOM in bench.warnings[0]


def test_nothing_is_said_or_done_where_the_policy_says_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path, policy="off", stall_s=2, machine=FakeMachine(PLENTY, LOW_MEMORY))
    bench.write(OOM)
    bench.wait(30, pause=0.001)
    assert bench.cut is None
    assert bench.warnings == []


def test_line_that_ends_only_a_load_is_left_alone_in_a_batch(tmp_path: Path) -> None:
    full = "OSError: [Errno 28] No space left on device"
    bench = Bench(tmp_path, op="extract")
    bench.write(full)
    assert bench.wait(5).cut is None
    bench = Bench(tmp_path, op="load")
    bench.write(full)
    assert bench.wait(5).danger == "line"


def test_stall_of_processes_that_cannot_be_seen_is_not_claimed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stall_s=10)
    bench.tree = []  # type: ignore
    assert bench.wait(60).cut is None


def test_fatal_line_in_a_batch_is_cut_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, op="extract")
    bench.write(OOM)
    assert bench.wait(5).danger == "line"
    assert bench.cut is not None
    assert bench.cut.found.startswith("killed: the engine says")


def test_lines_of_a_waiting_engine_are_no_sign_of_life(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stall_s=40)
    for _ in range(8):
        bench.write(WAITING)
        bench.wait(10, pause=0.0005)
    assert bench.danger == "stall"
    assert 40 <= bench.now < 46


def test_other_lines_are_a_sign_of_life(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stall_s=40)
    for _ in range(8):
        bench.write("Loading, slowly")
        bench.wait(10, pause=0.0005)
    assert bench.cut is None


@pytest.mark.parametrize(
    ("readings", "danger"),
    [
        ([{"0": DeviceReading(10 * GIB, 0)}], "stall"),
        ([{"0": DeviceReading(10 * GIB)}], "stall"),
        ([{"0": DeviceReading(10 * GIB, 99)}], ""),
        ([{"0": DeviceReading(number * MIB)} for number in range(1000)], ""),
    ],
    ids=["idle", "still", "busy", "filling"],
)
def test_stall_is_cut_only_when_the_gpus_stand_still_too(
    tmp_path: Path, readings: list[dict[str, DeviceReading]], danger: str
) -> None:
    bench = Bench(tmp_path, stall_s=20, devices=FakeDevices(*readings))
    bench.wait(80, pause=0.001)
    assert bench.danger == danger
    assert bench.warnings == []


def test_stall_is_only_told_where_the_gpus_are_unknown(tmp_path: Path) -> None:
    bench = Bench(tmp_path, stall_s=20, devices=FakeDevices(None))
    bench.wait(80, pause=0.001)
    assert bench.cut is None
    assert len(bench.warnings) == 1
    assert "unknown" in bench.warnings[0]


def test_slow_answer_about_the_gpus_is_never_waited_for(tmp_path: Path) -> None:
    over = threading.Event()

    class Hung:
        def read(self) -> None:
            over.wait(30)

    bench = Bench(tmp_path, stall_s=20, devices=Hung())
    begun = time.monotonic()
    bench.wait(60)
    over.set()
    assert time.monotonic() - begun < 10
    assert bench.cut is None
    assert len(bench.warnings) == 1


def test_memory_about_to_run_out_is_cut(tmp_path: Path) -> None:
    bench = Bench(tmp_path, machine=FakeMachine(PLENTY, LOW_MEMORY)).wait(10)
    assert bench.danger == "memory"
    assert bench.cut is not None
    assert "64 MiB of 8,192 MiB host memory left" in bench.cut.found


def test_one_low_reading_of_memory_is_no_danger(tmp_path: Path) -> None:
    bench = Bench(tmp_path, machine=FakeMachine(PLENTY, LOW_MEMORY, PLENTY)).wait(20)
    assert bench.cut is None


def test_shared_memory_about_to_run_out_is_cut_in_a_load_and_told_later(tmp_path: Path) -> None:
    assert Bench(tmp_path, machine=FakeMachine(PLENTY, LOW_SHM)).wait(10).danger == "shm"
    bench = Bench(tmp_path, op="extract", machine=FakeMachine(PLENTY, LOW_SHM)).wait(10)
    assert bench.cut is None
    assert len(bench.warnings) == 1
    assert "/dev/shm" in bench.warnings[0]


def test_small_shared_memory_from_the_start_is_no_danger(tmp_path: Path) -> None:
    bench = Bench(tmp_path, machine=FakeMachine(LOW_SHM)).wait(10)
    assert bench.cut is None
    assert bench.warnings == []


@pytest.mark.parametrize("policy", ["", "code=kill"])
def test_code_that_changes_during_a_load_is_told_or_cut_by_policy(
    tmp_path: Path, policy: str
) -> None:
    code = tmp_path / "inside"
    code.mkdir()
    (code / "worker.py").write_text("one = 1\n")
    bench = Bench(tmp_path, code=(code,), policy=policy).wait(10)
    assert bench.cut is None
    (code / "worker.py").write_text("one = 22\n")
    bench.wait(10)
    if policy:
        assert bench.cut is not None
        assert bench.cut.details["changed"] == ["inside/worker.py"]
    else:
        assert bench.cut is None
        assert len(bench.warnings) == 1
        assert "inside/worker.py" in bench.warnings[0]


def test_phases_of_a_load_are_reported_in_order_with_shards(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for line in (
        "(Worker pid=5) INFO 11-29 23:27:41 [cpu_model_runner.py:68] Starting to load model /m...",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 25.69it/s]",
        "(Worker pid=5) INFO 11-29 23:27:43 [default_loader.py:501] Loading weights took 0.08 s",
    ):
        bench.write(line)
        bench.wait(3)
    bench.finish()
    new = [progress.phase for progress in bench.progress if progress.new_phase]
    assert new == ["import", "download check", "weights", "post-processing", "ready"]
    assert "weights 1 of 2" in [progress.where for progress in bench.progress]
    # And about once a second in between.
    assert 9 <= len(bench.progress) <= 18


def test_cut_tells_the_seconds_saved_against_the_last_load_of_its_kind(tmp_path: Path) -> None:
    kind = LoadKind({"model": "m"}, bytes=540_000_000_000)
    bench = Bench(tmp_path, kind=kind, policy="stall=off")
    bench.wait(600)
    bench.finish()
    assert bench.progress[0].expected_s == pytest.approx(1230)
    assert "540.0 GB" in bench.progress[0].why
    assert bench.progress[-1].phase == "ready"
    assert bench.progress[-1].eta_s == 0
    bench = Bench(tmp_path, kind=kind).wait(130)
    assert bench.progress[-1].eta_s == pytest.approx(470, abs=2)
    bench.write(OOM)
    bench.wait(5)
    assert bench.cut is not None
    assert bench.cut.details["expected_seconds"] == 600
    assert bench.cut.details["saved_seconds"] == pytest.approx(469, abs=2)
    assert "killed at 2:10 of an expected 10:00 (the last load of this kind), 7:" in bench.cut.found


def test_setting_of_a_stall_is_the_supervisors_default() -> None:
    assert Settings().stall_deadline == STALL_S == Supervision().stall_s


def test_look_is_cheap(tmp_path: Path) -> None:
    bench = Bench(tmp_path, machine=LinuxRoom(), code=code_on_disk.ROOTS, policy="warn")
    begun = time.process_time()
    bench.wait(250)
    # 1000 looks in 250 s: less than 0.2 % of a core.
    assert time.process_time() - begun < 0.5


def test_policy_is_read_over_the_defaults() -> None:
    actions = read_actions("stall=warn, code=kill")
    assert actions[Danger.STALL] is Action.WARN
    assert actions[Danger.CODE] is Action.KILL
    assert actions[Danger.LINE] is Action.KILL
    assert set(read_actions("warn").values()) == {Action.WARN}
    # What the setting says where nobody has set it.
    assert read_actions(Settings().supervise) == read_actions("") == DEFAULT_ACTIONS


@pytest.mark.parametrize("text", ["stall=maybe", "nothing=kill", "stall"])
def test_policy_that_says_nothing_known_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_actions(text)
    assert caught.value.failure.id == "supervise.bad-policy"
