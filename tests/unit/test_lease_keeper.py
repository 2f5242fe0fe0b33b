"""A real keeper with a stand-in for the engine: start, attach, status, stop, and what is left."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.capture.protocol import Request
from harness.capture.session import Deadlines
from harness.cli import app
from harness.errors import CheckFailed, EngineFailed, HarnessError, Refused, UsageError
from harness.host import processes
from harness.host.supervision.policy import LoadProgress
from harness.lease import attach as attaching
from harness.lease import record
from harness.lease.attach import find
from harness.lease.condition import Condition, judge
from harness.lease.record import Book, Lease
from harness.lease.stop import stop
from tests.unit.hosts import running_after
from tests.unit.leases import Box, box_in


@pytest.fixture
def box(tmp_path: Path, tiny_kimi: Path) -> Iterator[Box]:
    with box_in(tmp_path, tiny_kimi) as one:
        yield one


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory, tiny_kimi: Path) -> Iterator[Box]:
    """One lease, for tests that leave it as it was."""
    with box_in(tmp_path_factory.mktemp("held"), tiny_kimi) as one:
        one.hold()
        yield one


def lease_of(box: Box) -> Lease:
    found = box.book.read("one")
    assert found is not None
    return found


def ask(box: Box, name: str = "one", **given: Any) -> list[int]:
    """Attach, prove, capture one prompt; return the tokens that came back with the rows."""
    attached = attaching.attach(name, given, deadlines=Deadlines(), book=box.book)
    rows = []
    with attached.session as session:
        session.attach(attached.loaded)
        session.require_proof()
        session.run([Request("call-0", [1, 2, 3])], lambda file: rows.append(file.rows))
        assert session.loads == 0
    return rows


def test_two_sessions_one_load_and_an_empty_spool(held: Box) -> None:
    before = lease_of(held)
    assert (before.loads, before.depths) == (1, (1, 3, 4, 6))
    for _ in range(2):
        assert ask(held) == [3]
        held.until(Condition.READY)
        assert not list(before.spool.glob("*.safetensors"))
    again = lease_of(held)
    assert (again.loads, again.sessions) == (1, before.sessions + 2)
    assert held.python.loads == 1


def test_everything_but_the_lock_is_private(held: Box) -> None:
    lease = lease_of(held)
    for path in (lease.folder, lease.spool):
        assert path.stat().st_mode & 0o777 == 0o700
    assert (lease.folder / "socket").stat().st_mode & 0o777 == 0o600
    assert held.book.path("one").stat().st_mode & 0o077 == 0


def test_what_a_session_asks_for_otherwise_is_refused_and_the_rest_is_the_leases(held: Box) -> None:
    assert ask(held, layers="1,3,4", max_model_len=1024) == [3]
    with pytest.raises(Refused, match=r"lease.differs") as caught:
        ask(held, layers="1,3,5")
    assert caught.value.failure.found.startswith(
        "layers: lease 1,3,4 (depths 1,3,4,6), asked 1,3,5 (depths 1,3,5,6); "
    )
    assert ask(held) == [3]


def test_name_is_taken_once(held: Box) -> None:
    for begin in (held.start, held.hold):
        with pytest.raises(Refused, match=r"lease.name-taken") as caught:
            begin()
        assert "--hs-attach=one" in caught.value.failure.next
    assert held.judged().condition is Condition.READY
    assert held.python.loads == 1


def test_attached_session_is_proved_anew(held: Box) -> None:
    held.python.behave(canary="wrong")
    with pytest.raises(CheckFailed, match=r"canary.failed"):
        ask(held)
    held.python.behave()
    assert ask(held) == [3]


def test_second_session_is_refused_and_a_lease_in_use_is_not_stopped(held: Box) -> None:
    attached = attaching.attach("one", {}, book=held.book)
    attached.session.attach(attached.loaded)
    held.until(Condition.BUSY)
    with pytest.raises(Refused, match=r"lease.busy"):
        ask(held)
    with pytest.raises(Refused, match=r"lease.in-use") as caught:
        stop("one", book=held.book)
    assert f"pid {os.getpid()}" in caught.value.failure.found
    attached.session.close()
    held.until(Condition.READY)


def test_unknown_lease_names_those_there_are(held: Box, tmp_path: Path) -> None:
    for act in (lambda: stop("two", book=held.book), lambda: ask(held, "two")):
        with pytest.raises(UsageError, match=r"expected: one of one"):
            act()
    with pytest.raises(UsageError, match=r"harness engine status"):
        stop("two", book=Book(tmp_path))
    with pytest.raises(UsageError, match=r"harness engine start"):
        find("two", Book(tmp_path))


def test_any_lease_is_the_only_one_that_lives(held: Box, tmp_path: Path) -> None:
    assert attaching.find("auto", held.book).lease.name == "one"
    with pytest.raises(UsageError, match=r"lease.unknown"):
        attaching.find("auto", Book(tmp_path))
    other = replace(lease_of(held), name="other")
    held.book.write(other)
    with pytest.raises(HarnessError, match=r"lease.several"):
        attaching.find("auto", held.book)
    held.book.change(other, state=record.ENDED)
    assert attaching.find("auto", held.book).lease.name == "one"
    held.book.path("other").unlink()


def test_load_that_fails_says_why_now_and_later_and_frees_the_name(box: Box) -> None:
    box.python.behave(load="fail")
    with pytest.raises(EngineFailed, match=r"engine.double-failed"):
        box.hold()
    assert box.judged().condition is Condition.DEAD
    assert box.judged().why == "engine.double-failed: a double that was told to fail at load"
    with pytest.raises(Refused, match=r"lease.not-ready") as caught:
        ask(box)
    assert "double-failed" in caught.value.failure.found
    box.python.behave()
    assert judge(box.hold()).condition is Condition.READY


def test_engine_that_fails_the_canary_is_no_lease(box: Box) -> None:
    box.python.behave(canary="wrong")
    with pytest.raises(CheckFailed, match=r"canary.failed"):
        box.hold()
    assert box.judged().why.startswith("canary.failed: ")
    assert not box.python.running()


def test_files_that_change_while_it_loads_make_no_lease(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter([{"harness/inside/worker.py": "a"}, {"harness/inside/worker.py": "b"}])
    monkeypatch.setattr("harness.lease.files.code_digests", lambda: next(seen))
    with pytest.raises(Refused, match=r"lease.changed-while-loading") as caught:
        box.hold()
    assert caught.value.failure.found == "harness/inside/worker.py differs"
    assert not box.python.running()


def test_code_of_the_checkpoint_runs_only_where_it_may(box: Box) -> None:
    box.python.answer(language_model_only=False)
    with pytest.raises(Refused, match=r"lease.remote-code"):
        box.hold(capture="patched")
    assert box.files() == []
    assert not box.python.engines()


def test_nothing_is_loaded_onto_gpus_that_are_not_clean(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dirty(plan: object, *, skip: tuple[str, ...]) -> None:
        raise Refused("preflight.dirty", expected="a", found="b", where="c", next="d")

    monkeypatch.setattr("harness.lease.keeper.require_clean", dirty)
    with pytest.raises(Refused, match=r"preflight.dirty"):
        box.hold()
    assert box.files() == []
    assert not box.python.engines()


def test_time_that_is_over_while_it_loads_ends_it(box: Box) -> None:
    box.python.behave(load="hang")
    with pytest.raises(EngineFailed, match=r"lease.expired"):
        box.hold(seconds=0.3)
    assert not box.python.running()


def test_lease_ends_when_its_time_is_over(box: Box) -> None:
    lease = box.hold()
    tree = box.tree(lease)
    box.expire()
    box.until(Condition.EXPIRED)
    assert running_after(tree, 5) == []
    assert not (lease.folder / "socket").exists()
    assert not lease.spool.exists()
    with pytest.raises(Refused, match=r"expired: its time was over"):
        ask(box)


def test_engine_that_is_killed_ends_the_lease_and_status_says_why(box: Box) -> None:
    lease = box.hold()
    tree = box.tree(lease)
    assert lease.engine is not None
    processes.send(lease.engine, signal.SIGKILL)
    box.until(Condition.DEAD)
    assert "host.engine-died: killed by SIGKILL" in box.judged().why
    assert running_after(tree, 5) == []


# From here on with a keeper in a process of its own.


@pytest.mark.slow
def test_refused_plan_is_the_commands_own_error_and_leaves_nothing(box: Box) -> None:
    with pytest.raises(UsageError, match=r"layers.out-of-range"):
        box.start(options={"layers": "1,99"})
    assert box.files() == []


def test_keeper_that_is_killed_leaves_no_process_and_stop_clears_the_rest(box: Box) -> None:
    lease = box.start(spool=box.folder / "disk")
    assert lease.spool == box.folder / "disk" / "harness-one"
    # Its own session: no terminal's end reaches it.
    assert os.getsid(lease.keeper.pid) == lease.keeper.pid != os.getsid(0)
    tree = [lease.keeper, *box.tree(lease)]
    processes.send(lease.keeper, signal.SIGKILL)
    assert running_after(tree, 5) == []
    assert box.judged().why == f"its keeper (pid {lease.keeper.pid}) was killed"
    with pytest.raises(Refused, match=r"lease.not-ready"):
        ask(box)
    assert stop("one", book=box.book).was is Condition.DEAD
    assert box.files() == []
    assert not lease.spool.exists()


def test_commands_start_list_and_stop(box: Box) -> None:
    run = CliRunner()

    def harness(*args: str) -> Any:
        result = run.invoke(app, ["engine", *args])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1]) if "--json" in args else result

    common = ("--model", str(box.model), "--layers", "1,3,4", "--python", str(box.python.python))
    assert "no leases" in harness("status").output
    started = run.invoke(
        app, ["engine", "start", *common, "--name", "one", "--for", "1h30m", "--json"]
    )
    made = json.loads(started.stdout)
    assert started.stderr.count("loading the engine") == 1
    assert (made["state"], made["capture"], made["loads"]) == ("ready", "native", 1)
    assert 5300 < made["left_s"] <= 5400
    tree = [lease_of(box).keeper, *box.tree(lease_of(box))]
    (listed,) = harness("status", "--json")["leases"]
    assert listed["pid"] == made["pid"]
    assert "ready" in harness("status").stdout
    refused = run.invoke(app, ["engine", "start", *common, "--name", "one"])
    assert refused.exit_code == 3
    # Only the keeper meets this one, just before it would load.
    spool = ("--spool", "/proc/none", "--name", "two")
    refused = run.invoke(app, ["engine", "start", *common, *spool])
    assert (refused.exit_code, "loading" in refused.output) == (3, False)
    done = harness("stop", "one", "--json")
    assert (done["was"], done["ended_processes"]) == ("ready", len(tree))
    assert running_after(tree, 0) == []
    assert harness("status", "--json")["leases"] == []
    assert box.files() == []


@pytest.mark.slow
def test_start_without_waiting_is_loading_and_can_be_stopped(box: Box) -> None:
    box.python.behave(load="hang")
    lease = box.start(wait=False)
    assert judge(lease).condition is Condition.LOADING
    with pytest.raises(Refused, match=r"loading"):
        ask(box)
    stop("one", book=box.book)
    assert not box.python.running()
    assert box.files() == []


@pytest.mark.slow
def test_who_gives_up_waiting_wants_no_load(box: Box) -> None:
    box.python.behave(load="hang")

    class Impatient:
        def loading(self, progress: LoadProgress) -> None:
            if box.python.loads:
                raise KeyboardInterrupt

        def warning(self, text: str) -> None:
            pass

    with pytest.raises(KeyboardInterrupt):
        box.start(observer=Impatient())
    assert not box.python.running()
    assert box.judged().condition is Condition.DEAD


@pytest.mark.slow
def test_two_starts_at_once_give_one_lease(box: Box) -> None:
    results: list[object] = []

    def go() -> None:
        try:
            results.append(box.start())
        except HarnessError as error:
            results.append(error.failure.id)

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {type(one) for one in results} == {Lease, str}
    assert "lease.name-taken" in results
    assert box.python.loads == 1


@pytest.mark.slow
def test_session_that_dies_in_a_batch_costs_no_load(box: Box) -> None:
    box.python.behave(extract="slow")
    lease = box.start()
    pid = os.fork()
    if pid == 0:
        ask(box)
        os._exit(0)
    box.until(Condition.BUSY)
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    box.python.behave()
    box.until(Condition.READY)
    assert not list(lease.spool.glob("*.safetensors"))
    assert ask(box) == [3]
    assert box.python.loads == 1


@pytest.mark.slow
def test_forced_stop_tells_the_session_that_uses_the_lease(box: Box) -> None:
    box.start()
    attached = attaching.attach("one", {}, book=box.book)
    attached.session.attach(attached.loaded)
    box.until(Condition.BUSY)
    stop("one", force=True, book=box.book)
    with pytest.raises(EngineFailed, match=r"lease.ended"):
        attached.session.plain([[1, 2]])


@pytest.mark.parametrize("skip", [True, False])
def test_gate_is_left_out_where_the_start_says_so_and_has_no_say_of_a_loaded_engine(
    box: Box, monkeypatch: pytest.MonkeyPatch, skip: bool
) -> None:
    said: list[bool] = []
    monkeypatch.setattr(
        "harness.extraction.plan.require_static", lambda *_, skip, **__: said.append(skip)
    )
    facts = box.python.folder / "facts.json"
    body = json.loads(facts.read_text())
    facts.write_text(json.dumps({**body, "vllm": {**body["vllm"], "path": str(box.folder)}}))
    box.hold(skip_gate=skip)
    assert set(said) == {skip}
    said.clear()
    ask(box)
    assert set(said) == {True}
