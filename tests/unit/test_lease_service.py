"""A keeper's service: calls forwarded, one client at a time, nothing left of a client that went."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import CheckFailed, EngineFailed, HarnessError, Refused, UsageError
from harness.host.wire import Channel
from harness.lease import address, client
from harness.lease.client import AttachedHost
from harness.lease.messages import error_from_json, error_to_json
from harness.lease.service import End
from tests.unit.leases import Served, failure, served


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as running:
        yield running


def call(host: AttachedHost, op: str, **params: Any) -> dict[str, Any]:
    return host.call(op, params, deadline_s=5.0)


def test_calls_are_forwarded_with_their_parameters_and_deadline(one: Served) -> None:
    assert call(one.attached(), "held", a=[1, {"b": 2}]) == {"op": "held", "deadline_s": 5.0}
    assert one.host.calls == [("held", {"a": [1, {"b": 2}]})]


def test_events_arrive_in_order_before_the_result(one: Served) -> None:
    events: list[dict[str, Any]] = []
    host = one.attached()
    host.call("count", {"to": 500}, deadline_s=5, on_event=events.append)
    assert events == [{"event": "number", "number": number} for number in range(500)]


def test_keys_of_two_sessions_never_meet_in_the_engine(one: Served) -> None:
    keys = []
    for _ in range(2):
        host = one.attached()
        events: list[dict[str, Any]] = []
        samples = [{"key": "call-0", "input_ids": [1]}]
        host.call("extract", {"samples": samples}, deadline_s=5, on_event=events.append)
        host.close()
        keys.append(one.host.calls[-1][1]["samples"][0]["key"])
        assert [event["key"] for event in events] == ["call-0"]
        assert events[0]["file"] == f"{keys[-1]}.s"
    assert keys == ["s1-call-0", "s2-call-0"]


def test_foreseen_error_keeps_id_class_and_details_and_the_session_goes_on(one: Served) -> None:
    host = one.attached()
    with pytest.raises(EngineFailed) as caught:
        call(host, "foreseen")
    assert caught.value.failure == failure("engine.test").failure
    assert caught.value.details == {"traceback": "here"}
    assert call(host, "held")["op"] == "held"


@pytest.mark.parametrize("kind", [CheckFailed, UsageError, Refused, EngineFailed])
def test_every_kind_of_error_comes_back_as_it_was(kind: type[HarnessError]) -> None:
    error = kind("some.id", expected="a", found="b", where="c", next="d", number=1, odd=object())
    back = error_from_json(error_to_json(error))
    assert type(back) is kind
    assert (back.failure, back.details) == (error.failure, {"number": 1})


def test_error_of_the_keeper_itself_is_told_as_one() -> None:
    back = error_from_json(error_to_json(KeyError("x")))
    assert (back.failure.id, back.failure.found) == ("lease.keeper-failed", "KeyError: 'x'")


def test_engine_that_dies_in_a_call_ends_the_lease_with_the_reason(one: Served) -> None:
    host = one.attached()
    with pytest.raises(EngineFailed, match=r"host.engine-died") as caught:
        call(host, "die")
    assert caught.value.details == {"signal": "SIGABRT", "log_tail": ["last words"]}
    assert one.ended() == End("died", "host.engine-died: another")
    with pytest.raises(EngineFailed, match=r"lease.ended"):
        call(host, "held")


def test_engine_that_dies_while_nobody_calls_ends_the_lease(one: Served) -> None:
    one.host.death = failure("host.worker-died")
    assert one.ended() == End("died", "host.worker-died: another")


def test_second_client_is_refused_and_told_who_holds_it(one: Served) -> None:
    first = one.attached()
    with pytest.raises(Refused, match=r"lease.busy") as caught:
        one.attached()
    assert f"pid {os.getpid()} (" in caught.value.failure.found
    assert call(first, "held")["op"] == "held"


def test_close_detaches_and_the_engine_stays(one: Served) -> None:
    host = one.attached()
    (one.lease.spool / "s1-x.safetensors").write_text("rows")
    (one.lease.spool / "results.jsonl").write_text("{}")
    host.close()
    host.close()
    one.until(lambda: one.clients[-1][1] is None)
    assert [path.name for path in one.lease.spool.iterdir()] == ["results.jsonl"]
    assert one.attached().start()["session"] == 2
    assert one.end is None
    with pytest.raises(UsageError, match=r"host.closed"):
        call(host, "held")


def test_next_client_may_come_the_moment_the_last_one_has_gone(one: Served) -> None:
    for _ in range(20):
        one.attached().close()
    assert one.clients[-1][0] == 20


def test_client_that_vanishes_in_a_call_lets_the_engine_finish_first(one: Served) -> None:
    host = one.attached()
    with pytest.raises(EngineFailed, match=r"lease.no-answer"):
        # The session's own time is over long before the engine is done.
        host.call("wait", {}, deadline_s=0.1 - client._MARGIN_S)
    assert one.host.inside.is_set()
    one.until(lambda: one.clients[-1][1] is not None and one.clients[-1][1].gone)
    with pytest.raises(Refused, match=r"lease.busy") as caught:
        one.attached()
    assert "which is gone: its last batch is being finished" in caught.value.failure.found
    (one.lease.spool / "s1-late.safetensors").write_text("rows that nobody waits for")
    one.host.gate.set()
    one.until(lambda: one.clients[-1][1] is None)
    assert not list(one.lease.spool.iterdir())
    assert call(one.attached(), "held")["op"] == "held"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_session_that_leaves_a_call_is_detached_and_told_so(
    one: Served, error: type[BaseException]
) -> None:
    host = one.attached()

    def leave(event: dict[str, Any]) -> None:
        raise error

    with pytest.raises(error):
        host.call("count", {"to": 3}, deadline_s=5, on_event=leave)
    with pytest.raises(EngineFailed, match=r"lease.detached") as caught:
        call(host, "held")
    assert "host.interrupted" in caught.value.failure.found
    one.until(lambda: one.clients[-1][1] is None)
    assert call(one.attached(), "held")["op"] == "held"


@pytest.mark.parametrize("op", ["load", "configure", "shutdown"])
def test_ops_that_change_the_engine_are_not_forwarded(one: Served, op: str) -> None:
    host = one.attached()
    with pytest.raises(UsageError, match=r"lease.not-forwarded"):
        call(host, op)
    assert not one.host.calls
    assert call(host, "held")["op"] == "held"


def test_request_that_does_not_fit_a_message_is_refused_before_it_is_sent(one: Served) -> None:
    host = one.attached()
    with pytest.raises(UsageError, match=r"host.bad-request"):
        call(host, "held", value=float("nan"))
    assert call(host, "held")["op"] == "held"


@pytest.mark.parametrize("text", [b"no json\n", b"[1]\n", b'{"id": 1}\n', b'{"id": "x"'])
def test_client_that_talks_nonsense_is_dropped_and_nobody_else(one: Served, text: bytes) -> None:
    with address.connect(one.lease.folder) as connection:
        connection.sendall(text)
        connection.shutdown(1)
        while connection.recv(1000):
            pass
    assert call(one.attached(), "held")["op"] == "held"


def test_process_of_another_user_is_not_served(
    one: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "peer", lambda connection: (1, os.getuid() + 1))
    with pytest.raises(EngineFailed, match=r"lease.ended"):
        one.attached()
    assert not one.clients


def test_time_that_is_over_ends_the_lease_and_tells_its_client(tmp_path: Path) -> None:
    with served(tmp_path, seconds=1.0) as one:
        host = one.attached()
        with pytest.raises(EngineFailed, match=r"lease.ended") as caught:
            call(host, "wait")
        assert caught.value.failure.found == "its time was over"
        assert one.ended() == End("expired", "its time was over")


def test_stop_ends_it_in_the_middle_of_a_call_and_tells_the_client(one: Served) -> None:
    host = one.attached()
    one.service.stop()
    with pytest.raises(EngineFailed, match=r"lease.ended"):
        call(host, "wait")
    assert one.ended() == End("stopped", "it was stopped")


def test_keeper_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    with served(tmp_path) as one:
        lease, book = one.lease, one.book
    with pytest.raises(EngineFailed, match=r"lease.unreachable"):
        AttachedHost(lease, book).start(5)


def test_path_that_is_too_long_for_a_socket_is_none_here(tmp_path: Path) -> None:
    with served(tmp_path / ("long" * 40)) as one:
        assert len(str(one.lease.folder)) > 150
        assert call(one.attached(), "held")["op"] == "held"


def test_socket_is_its_owners_alone(one: Served) -> None:
    assert (one.lease.folder / address.SOCKET).stat().st_mode & 0o777 == 0o600
    one.lease.folder.chmod(0o750)
    with pytest.raises(Refused, match=r"lease.foreign-socket"):
        one.attached()


def test_keeper_of_another_kind_is_not_believed(one: Served, monkeypatch: Any) -> None:
    monkeypatch.setattr(client, "PROTOCOL", 99)
    with pytest.raises(EngineFailed, match=r"lease.unreachable"):
        one.attached()


def test_flood_of_a_reply_arrives_whole(one: Served) -> None:
    host = one.attached()
    events: list[int] = []
    host.call("count", {"to": 5_000}, deadline_s=30, on_event=lambda e: events.append(e["number"]))
    assert events == list(range(5_000))


def test_messages_are_json_lines(one: Served) -> None:
    with address.connect(one.lease.folder) as connection:
        channel = Channel(connection)
        while (hello := channel.take()) is None:
            channel.fill()
    assert hello == {"event": "hello", "protocol": 1, "lease": "one", "session": 1}
