"""Reclaim: what it ends, what it never ends, and what it says of the rest."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from harness import state
from harness.errors import Refused, UsageError
from harness.host.leftovers.record import OWNER, TOKEN, EngineRecord, Machine, path_of
from harness.host.processes import Process
from harness.preflight import facts
from harness.preflight.facts import Census, Device, Memory, Problem
from harness.reclaim import (
    Action,
    Found,
    Patience,
    Reclaimer,
    Result,
    Standing,
    Step,
    Target,
    plan_for,
)
from harness.reclaim import find as find_engines
from harness.reclaim import plan as plan_steps
from harness.reclaim.memory import Cause, DeviceUse, Holder, chosen, held
from harness.reclaim.nvml import Nvml
from tests.unit.machines import ME, SHELL, Double, Gauge

HERE = Machine("box", "boot-1", "pid:[1]")
OWNER_GONE = Process(100, 10, name="pytest")
REAPER = Process(200, 20, parent=1, state="S", name="python", group=200, session=200)
ENGINE = Process(201, 21, parent=200, state="S", name="engine", group=201, session=200)
WORKER = Process(202, 22, parent=201, state="S", name="VLLM::Worker_TP0", group=201, session=200)
TREE = [REAPER, ENGINE, WORKER]
GIB = 1 << 30
_CARD = Device(
    2,
    "GPU-2",
    memory=Memory(96 * GIB, 75_728 << 20, reserved=600 << 20),
    holders=(facts.Holder(7, "compute"), facts.Holder(8, "mps", GIB)),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def machine() -> Double:
    """A machine with one engine whose owner is gone."""
    double = Double()
    double.table += TREE
    return double


def record(home: Path, **changes: object) -> EngineRecord:
    facts = EngineRecord(
        token="t1",
        machine=HERE,
        owner=OWNER_GONE,
        reaper=REAPER,
        engine=ENGINE,
        folder=str(home / "harness-host-x"),
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def find(machine: Double, *records: EngineRecord | None) -> list[Found]:
    paths = [(path_of(r.token if r else "unknown"), r) for r in records]
    return find_engines(machine, paths, machine=HERE, me=ME.pid)


def carry_out(machine: Double, steps: tuple[Step, ...], meter: Gauge | None = None) -> Result:
    patience = Patience(polite=1.0, kill=4.0, memory=20.0)
    reclaimer = Reclaimer(machine, meter or Gauge(machine), me=ME.pid, patience=patience)
    (result,) = reclaimer.carry_out(steps)
    return result


# Finding.


def test_engine_whose_owner_is_gone_is_an_orphan_with_all_its_processes(
    machine: Double, home: Path
) -> None:
    (engine,) = find(machine, record(home))
    assert engine.standing is Standing.ORPHAN
    assert set(engine.processes) == set(TREE)


def test_engine_whose_owner_runs_is_live(machine: Double, home: Path) -> None:
    machine.table.append(OWNER_GONE)
    (engine,) = find(machine, record(home))
    assert engine.standing is Standing.LIVE


def test_owners_pid_that_was_given_out_again_is_no_owner(machine: Double, home: Path) -> None:
    machine.table.append(replace(OWNER_GONE, start=999))
    (engine,) = find(machine, record(home))
    assert engine.standing is Standing.ORPHAN


def test_record_of_which_nothing_runs_is_stale(home: Path) -> None:
    (engine,) = find(Double(), record(home))
    assert (engine.standing, engine.processes) == (Standing.STALE, ())


def test_pids_of_the_record_that_were_given_out_again_are_strangers(home: Path) -> None:
    double = Double()
    # Even as leader of a session and a group of the recorded numbers.
    strangers = [replace(p, start=p.start + 500) for p in TREE]
    double.table += strangers
    (engine,) = find(double, record(home))
    assert (engine.standing, engine.processes) == (Standing.STALE, ())


def test_member_of_the_session_without_a_mark_is_found_while_one_is_known(
    machine: Double, home: Path
) -> None:
    machine.table.remove(ENGINE)
    machine.table.remove(WORKER)
    orphan = Process(300, 30, parent=1, state="S", name="helper", group=300, session=200)
    machine.table.append(orphan)
    (engine,) = find(machine, record(home))
    assert orphan in engine.processes


def test_marked_process_is_found_without_a_record(home: Path) -> None:
    double = Double()
    lost = Process(400, 40, parent=1, state="S", name="VLLM::EngineCor", group=9, session=9)
    double.table.append(lost)
    double.environments[400] = {TOKEN: "t9", OWNER: "100:10", state.VARIABLE: str(home / "state")}
    (engine,) = find(double)
    assert (engine.standing, engine.token) == (Standing.ORPHAN, "t9")
    assert engine.processes == (lost,)
    double.table.append(OWNER_GONE)
    (engine,) = find(double)
    assert engine.standing is Standing.LIVE


def test_mark_of_another_installation_is_left_to_it(home: Path) -> None:
    double = Double()
    double.table.append(Process(400, 40, parent=1, state="S", name="x"))
    double.environments[400] = {TOKEN: "t9", OWNER: "1:1", state.VARIABLE: "/elsewhere"}
    assert find(double) == []


def test_marked_shell_above_this_command_is_never_found(home: Path) -> None:
    double = Double()
    for process in (SHELL, ME):
        environment = {TOKEN: "t9", OWNER: "100:10", state.VARIABLE: str(home / "state")}
        double.environments[process.pid] = environment
    assert [engine.processes for engine in find(double)] == [()]


@pytest.mark.parametrize(
    ("there", "standing"),
    [
        (Machine("box", "boot-0", "pid:[1]"), Standing.STALE),
        (Machine("box", "boot-1", "pid:[2]"), Standing.ELSEWHERE),
        (Machine("other", "boot-9", "pid:[1]"), Standing.ELSEWHERE),
    ],
)
def test_record_of_another_boot_or_container_names_no_process_here(
    machine: Double, home: Path, there: Machine, standing: Standing
) -> None:
    (engine,) = find(machine, record(home, machine=there))
    assert (engine.standing, engine.processes) == (standing, ())


def test_record_of_an_unknown_form_is_left(machine: Double) -> None:
    (step,) = plan_steps(find(machine, None))
    assert step.action is Action.LEAVE


# Deciding.


def test_only_what_has_no_owner_is_ended(machine: Double, home: Path) -> None:
    (step,) = plan_steps(find(machine, record(home)))
    assert (step.action, set(step.processes)) == (Action.END, set(TREE))
    machine.table.append(OWNER_GONE)
    (step,) = plan_steps(find(machine, record(home)))
    assert step.action is Action.LEAVE
    assert "--pid 200" in step.why


def test_live_engine_is_ended_whole_when_one_of_it_is_named(machine: Double, home: Path) -> None:
    machine.table.append(OWNER_GONE)
    found = find(machine, record(home))
    (step,) = plan_for(Target(WORKER.pid), found, machine.everything(), me=ME.pid)
    assert set(step.processes) == set(TREE)
    assert OWNER_GONE not in step.processes


def test_named_stranger_is_ended_alone(machine: Double, home: Path) -> None:
    stranger = Process(500, 50, parent=1, state="S", name="python", group=500, session=500)
    child = Process(501, 51, parent=500, state="S", name="python", group=500, session=500)
    machine.table += [stranger, child]
    steps = plan_for(Target(500), find(machine, record(home)), machine.everything(), me=ME.pid)
    assert [step.processes for step in steps] == [(stranger,)]
    carry_out(machine, steps)
    assert machine.pids() == {p.pid for p in (SHELL, ME, *TREE, child)}


@pytest.mark.parametrize(
    ("target", "id"),
    [
        (Target(999), "reclaim.no-process"),
        (Target(201, 20), "reclaim.other-process"),
        (Target(1), "reclaim.protected"),
        (Target(50), "reclaim.protected"),
        (Target(60), "reclaim.protected"),
        (Target(3), "reclaim.protected"),
        (Target(8), "reclaim.no-process"),
    ],
)
def test_process_that_may_not_be_ended_is_refused(machine: Double, target: Target, id: str) -> None:
    machine.table += [
        Process(1, 1, state="S", name="init"),
        Process(2, 1, state="S", name="kthreadd"),
        Process(3, 1, parent=2, state="I", name="kworker/0:0"),
        Process(8, 8, parent=1, state="Z", name="dead"),
    ]
    with pytest.raises(Refused) as caught:
        plan_for(target, [], machine.everything(), me=ME.pid)
    assert caught.value.failure.id == id


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "7:", "7:x", "7:8:9", "1.5"])
def test_bad_pid_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        Target.parse(text)


def test_pid_is_read_with_and_without_its_start_time() -> None:
    assert Target.parse(" 7 ") == Target(7)
    assert Target.parse("7:12") == Target(7, 12)
    assert str(Target.parse("7:12")) == "7:12"


# Ending.


def test_polite_first_and_hard_only_where_it_must_be(machine: Double, home: Path) -> None:
    machine.stubborn = {WORKER.pid}
    result = carry_out(machine, plan_steps(find(machine, record(home))))
    assert result.clean
    assert machine.pids() == {SHELL.pid, ME.pid}
    assert set(result.ended) == set(TREE)
    terms = [pid for pid, number in machine.sent if number == signal.SIGTERM]
    kills = [pid for pid, number in machine.sent if number == signal.SIGKILL]
    assert sorted(terms) == [200, 201, 202]
    assert kills == [202]
    assert machine.now >= 1.0


def test_resource_tracker_is_left_until_the_others_are_gone(machine: Double, home: Path) -> None:
    machine.stubborn = {p.pid for p in TREE}
    machine.trackers = {WORKER.pid}
    carry_out(machine, plan_steps(find(machine, record(home))))
    *others, tracker = [
        (when, pid)
        for when, (pid, number) in zip(machine.sent_at, machine.sent, strict=True)
        if number == signal.SIGKILL
    ]
    assert tracker[1] == WORKER.pid
    assert {pid for _, pid in others} == {REAPER.pid, ENGINE.pid}
    # On a busy machine it takes its time to remove shared memory.
    assert tracker[0] - others[-1][0] >= 3.0
    assert machine.pids() == {SHELL.pid, ME.pid}


def test_process_that_the_engine_starts_meanwhile_is_ended_too(machine: Double, home: Path) -> None:
    steps = plan_steps(find(machine, record(home)))
    late = Process(203, 23, parent=201, state="S", name="late", group=201, session=200)
    machine.table.append(late)
    assert carry_out(machine, steps).clean
    assert late.pid not in machine.pids()


def test_process_that_took_over_a_pid_meanwhile_gets_no_signal(machine: Double) -> None:
    victim = Process(500, 50, parent=1, state="S", name="python", group=500, session=500)
    machine.table.append(victim)
    steps = plan_for(Target(500, 50), [], machine.everything(), me=ME.pid)
    machine.replace(victim, start=51)
    assert carry_out(machine, steps).clean
    assert 500 in machine.pids()
    assert machine.sent == []


def test_unkillable_process_is_a_verdict_and_no_loop(machine: Double, home: Path) -> None:
    machine.unkillable = {WORKER.pid}
    machine.replace(WORKER, state="R")
    (home / "harness-host-x").mkdir()
    state.write_record(path_of("t1"), record(home).to_json())
    result = carry_out(machine, plan_steps(find(machine, record(home))))
    assert not result.clean
    assert machine.now < 6
    ((text, next),) = result.problems()
    assert text == "VLLM::Worker_TP0 (pid 202, state R) does not end on SIGKILL"
    assert "operator" in next
    # What leads to it stays.
    assert path_of("t1").exists()
    assert (home / "harness-host-x").exists()


def test_process_of_another_user_is_told_and_not_called_unkillable(machine: Double) -> None:
    other = Process(500, 50, parent=1, state="S", name="python", group=500, session=500)
    machine.table.append(other)
    machine.foreign = {500}
    result = carry_out(machine, plan_for(Target(500), [], machine.everything(), me=ME.pid))
    assert result.denied == (other,)
    assert result.survivors == ()
    assert not result.clean


def test_what_a_dead_engine_left_is_removed_with_its_record(home: Path) -> None:
    folder = home / "harness-host-x"
    (folder / "tmp").mkdir(parents=True)
    (folder / "tmp" / "socket").write_text("")
    state.write_record(path_of("t1"), record(home).to_json())
    double = Double()
    result = carry_out(double, plan_steps(find(double, record(home))))
    assert result.removed == (str(folder), str(path_of("t1")))
    assert not folder.exists()
    assert not path_of("t1").exists()


@pytest.mark.parametrize("name", ["precious", "harness-host-link"])
def test_folder_that_is_not_of_our_kind_is_never_removed(home: Path, name: str) -> None:
    (home / "precious").mkdir()
    (home / "harness-host-link").symlink_to(home / "precious")
    (home / "precious" / "file").write_text("")
    double = Double()
    carry_out(double, plan_steps(find(double, record(home, folder=str(home / name)))))
    assert (home / "precious" / "file").exists()


# Device memory.


def test_memory_that_comes_back_late_is_waited_for(machine: Double, home: Path) -> None:
    meter = Gauge(machine, {WORKER.pid: 74 * GIB}, late=4.0)
    result = carry_out(machine, plan_steps(find(machine, record(home))), meter)
    assert result.clean
    assert 4.0 <= machine.now < 6


def test_memory_without_a_process_is_held_below_the_runtime(machine: Double, home: Path) -> None:
    meter = Gauge(machine, {WORKER.pid: GIB}, stuck=75_728 << 20)
    result = carry_out(machine, plan_steps(find(machine, record(home))), meter)
    (held,) = result.held
    assert (held.index, held.cause, held.pids) == (2, Cause.BELOW, ())
    assert "device 2: 75,728 MiB used" in str(held)
    assert machine.now >= 20
    assert not result.clean


def test_memory_that_another_process_refers_to_is_named_with_it(
    machine: Double, home: Path
) -> None:
    cache = Process(600, 60, parent=1, state="S", name="lmcache", group=600, session=600)
    machine.table.append(cache)
    meter = Gauge(machine, {WORKER.pid: GIB, cache.pid: 0}, stuck=112 * GIB)
    result = carry_out(machine, plan_steps(find(machine, record(home))), meter)
    (held,) = result.held
    assert (held.cause, held.pids) == (Cause.REFERENCED, (600,))
    assert "harness reclaim --pid 600" in held.next
    assert cache.pid in machine.pids()


def test_memory_of_a_process_that_does_not_end_is_blamed_on_it_without_waiting(
    machine: Double, home: Path
) -> None:
    machine.unkillable = {WORKER.pid}
    meter = Gauge(machine, {WORKER.pid: 74 * GIB})
    result = carry_out(machine, plan_steps(find(machine, record(home))), meter)
    (held,) = result.held
    assert (held.cause, held.pids) == (Cause.ALIVE, (WORKER.pid,))
    assert machine.now < 6


def test_memory_of_others_is_neither_waited_for_nor_complained_of(
    machine: Double, home: Path
) -> None:
    other = Process(600, 60, parent=1, state="S", name="train", group=600, session=600)
    machine.table.append(other)
    meter = Gauge(machine, {WORKER.pid: GIB, other.pid: 60 * GIB})
    assert carry_out(machine, plan_steps(find(machine, record(home))), meter).clean
    assert machine.now < 3


def test_driver_that_does_not_answer_is_unknown_and_not_clean(machine: Double, home: Path) -> None:
    result = carry_out(machine, plan_steps(find(machine, record(home))), Gauge(machine, deaf=True))
    assert [held.cause for held in result.held] == [Cause.UNKNOWN]


def test_container_that_hides_holders_looks_at_the_devices_of_the_record(
    machine: Double, home: Path
) -> None:
    meter = Gauge(machine, {WORKER.pid: GIB}, stuck=GIB, listed=False)
    steps = plan_steps(find(machine, record(home, devices="2")))
    assert [h.cause for h in carry_out(machine, steps, meter).held] == [Cause.BELOW]
    machine.table += TREE
    steps = plan_steps(find(machine, record(home, devices="1")))
    assert carry_out(machine, steps, meter).clean


def test_device_where_the_driver_lists_others_only_does_not_concern_us(
    machine: Double, home: Path
) -> None:
    ours, theirs = Gauge(machine, {WORKER.pid: GIB}), DeviceUse(3, 50 * GIB)

    class Both(Gauge):
        def read(self) -> tuple[DeviceUse, ...]:
            return (*(ours.read() or ()), theirs)

    steps = plan_steps(find(machine, record(home, devices="2,3")))
    assert carry_out(machine, steps, Both(machine)).clean


@pytest.mark.parametrize(
    ("census", "reading"),
    [
        (
            Census(devices=(_CARD,)),
            (DeviceUse(2, 75_728 << 20, "GPU-2", (Holder(7, None), Holder(8, GIB))),),
        ),
        (Census(failure=Problem("init", 9, "Driver Not Loaded")), None),
        (Census(devices=(_CARD,), broken="no answer within 4.5 s"), None),
        (Census(devices=(_CARD, replace(_CARD, index=3, memory=None))), None),
        (Census(), ()),
    ],
)
def test_meter_tells_every_device_or_nothing(census: Census, reading: object) -> None:
    assert Nvml(lambda probe: census).read() == reading


def test_devices_are_chosen_as_the_variable_names_them() -> None:
    reading = (DeviceUse(0, 0, "GPU-aa"), DeviceUse(1, 0, "GPU-bb"), DeviceUse(2, 0, "GPU-bc"))
    assert chosen(reading, None) == {0, 1, 2}
    assert chosen(reading, "") == set()
    assert chosen(reading, "2, GPU-aa") == {0, 2}
    assert chosen(reading, "GPU-b") == {1, 2}
    assert chosen(reading, "7") == set()


def test_baseline_decides_where_there_is_one() -> None:
    now = (DeviceUse(0, 3 * GIB, holders=(Holder(7, GIB),)),)
    assert held(now, baseline={0: 3 * GIB - (256 << 20)}) == []
    (over,) = held(now, baseline={0: 3 * GIB - (257 << 20)})
    assert over.cause is Cause.REFERENCED
