"""Calls of a host: results, events, errors, deadlines, what breaks the protocol."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import EngineFailed, UsageError
from harness.host import Host
from harness.host import wire as parent_wire
from harness.inside import wire as child_wire
from tests.unit import hosts


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One child for all tests that leave it usable."""
    with Host(hosts.spec(tmp_path_factory.mktemp("host"))) as host:
        yield host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(hosts.spec(tmp_path)) as host:
        yield host


def failure_of(host: Host, op: str, params: dict[str, Any] | None = None, **more: Any) -> Any:
    more.setdefault("deadline_s", 10)
    with pytest.raises(EngineFailed) as caught:
        host.call(op, params, **more)
    return caught.value


def test_child_says_hello_with_its_own_pid_and_protocol(shared: Host) -> None:
    assert shared.hello["pid"] == shared.pid
    assert shared.hello["protocol"] == parent_wire.PROTOCOL
    assert shared.alive


def test_both_ends_agree_on_protocol_and_limit() -> None:
    assert parent_wire.PROTOCOL == child_wire.PROTOCOL
    assert parent_wire.MAX_MESSAGE_BYTES == child_wire.MAX_MESSAGE_BYTES


def test_result_comes_back_as_it_was_sent(shared: Host) -> None:
    params = {"text": "ä\n\u2028 \x00", "list": [1, 2.5, None, True], "deep": {"a": {}}}
    assert shared.call("echo", params, deadline_s=10) == params


def test_events_come_in_order_and_before_the_result(shared: Host) -> None:
    seen: list[dict[str, Any]] = []
    result = shared.call("count", {"to": 2000}, deadline_s=20, on_event=seen.append)
    assert [event["number"] for event in seen] == list(range(2000))
    assert seen[0] == {"event": "number", "number": 0}
    assert result == {"sent": 2000}


def test_events_from_a_thread_of_the_operation_arrive(shared: Host) -> None:
    seen: list[dict[str, Any]] = []
    shared.call("count_from_thread", {"to": 50}, deadline_s=10, on_event=seen.append)
    assert [event["number"] for event in seen] == list(range(50))


def test_event_after_the_end_of_its_operation_is_refused_in_the_child(shared: Host) -> None:
    shared.call("emit_late", deadline_s=10)
    shared.call("slow", {"seconds": 0.6}, deadline_s=10)
    assert "late event refused" in shared.spec.log.read_text()


def test_messages_of_megabytes_pass_both_ways(shared: Host) -> None:
    text = "y" * (5 * 2**20)
    result = shared.call("big", {"bytes": 6 * 2**20, "text": text}, deadline_s=20)
    assert result == {"text": "x" * (6 * 2**20), "got": len(text)}


def test_foreseen_error_keeps_its_fields_and_the_engine(shared: Host) -> None:
    failure = failure_of(shared, "fail_foreseen").failure
    assert failure.to_json() == {
        "id": "engine.test",
        "expected": "one thing",
        "found": "another",
        "where": "here",
        "next": "do this",
    }
    assert shared.call("echo", {"still": "here"}, deadline_s=10) == {"still": "here"}


def test_unknown_operation_is_a_foreseen_error_that_lists_the_known(shared: Host) -> None:
    failure = failure_of(shared, "ecko").failure
    assert failure.id == "wire.unknown-op"
    assert "echo" in failure.expected
    assert shared.alive


def test_result_with_nan_is_refused_where_it_arises(shared: Host) -> None:
    assert failure_of(shared, "not_a_number").failure.id == "wire.not-finite"
    assert shared.alive


def test_result_over_the_limit_is_refused_where_it_arises(shared: Host) -> None:
    error = failure_of(shared, "big", {"bytes": parent_wire.MAX_MESSAGE_BYTES}, deadline_s=30)
    assert error.failure.id == "wire.too-big"
    assert shared.alive


@pytest.mark.parametrize("value", [float("nan"), b"bytes", {1, 2}])
def test_parameters_that_are_no_json_are_refused_here_and_now(shared: Host, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        shared.call("echo", {"value": value}, deadline_s=10)
    assert caught.value.failure.id == "host.bad-request"
    assert shared.call("echo", {"value": 1}, deadline_s=10) == {"value": 1}


def test_parameters_over_the_limit_are_refused_here(
    shared: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_wire, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(UsageError) as caught:
        shared.call("echo", {"value": "x" * 1000}, deadline_s=10)
    assert caught.value.failure.id == "host.bad-request"


def test_second_call_while_one_waits_is_refused_and_disturbs_nothing(shared: Host) -> None:
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(shared.call("slow", {"seconds": 0.5}, deadline_s=10))
    )
    thread.start()
    time.sleep(0.2)
    with pytest.raises(UsageError) as caught:
        shared.call("echo", deadline_s=10)
    thread.join()
    assert caught.value.failure.id == "host.busy"
    assert results == [{}]


def test_plain_failure_brings_type_traceback_and_log_and_ends_the_engine(host: Host) -> None:
    error = failure_of(host, "fail")
    assert error.failure.id == "engine.error"
    assert error.failure.found == "ValueError: a plain failure"
    assert "in fail" in error.details["traceback"]
    assert "host child begins" in error.details["log_tail"]
    assert not host.alive


def test_result_that_is_no_json_is_an_error_of_the_operation(host: Host) -> None:
    error = failure_of(host, "not_json")
    assert error.failure.id == "engine.error"
    assert "not JSON serializable" in error.failure.found


def test_calls_after_a_failure_fail_at_once_and_name_it(host: Host) -> None:
    failure_of(host, "fail")
    begun = time.monotonic()
    error = failure_of(host, "echo")
    assert time.monotonic() - begun < 0.1
    assert error.failure.id == "host.failed-before"
    assert "engine.error" in error.failure.found


def test_deadline_cuts_a_hung_operation_and_leaves_its_stacks_in_the_log(host: Host) -> None:
    engine = hosts.named([host.pid])
    begun = time.monotonic()
    error = failure_of(host, "hang", deadline_s=1)
    assert time.monotonic() - begun < 1 + 1.5
    assert error.failure.id == "host.deadline"
    assert error.details["op"] == "hang"
    assert error.details["seconds"] >= 1
    assert "host child begins" in error.failure.found
    assert any("a_function_that_hangs" in line for line in error.details["stacks"])
    assert "a_function_that_hangs" in host.spec.log.read_text()
    assert hosts.running_after(engine, 5) == []


def test_deadline_cuts_native_code_that_holds_the_interpreter_lock(host: Host) -> None:
    engine = hosts.named([host.pid])
    error = failure_of(host, "hang_in_native_code", deadline_s=0.5)
    assert any("hang_in_native_code" in line for line in error.details["stacks"])
    assert hosts.running_after(engine, 5) == []


def test_deadline_holds_while_events_keep_coming(host: Host) -> None:
    seen: list[dict[str, Any]] = []

    def slower_than_the_engine(event: dict[str, Any]) -> None:
        seen.append(event)
        time.sleep(0.02)

    begun = time.monotonic()
    error = failure_of(host, "count_forever", deadline_s=1, on_event=slower_than_the_engine)
    assert time.monotonic() - begun < 1 + 1.5
    assert error.failure.id == "host.deadline"
    assert [event["number"] for event in seen] == list(range(len(seen)))
    assert len(seen) > 10


def test_deadline_counts_a_request_that_nobody_reads(host: Host) -> None:
    assert host._conversation is not None
    # The child works on one call and does not read: the second one fills the socket.
    host._conversation.request("slow", {"seconds": 30})
    error = failure_of(host, "echo", {"text": "z" * 2**22}, deadline_s=0.5)
    assert error.failure.id == "host.deadline"


def test_call_works_with_more_than_1024_open_files(tmp_path: Path) -> None:
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1030)]
    try:
        with Host(hosts.spec(tmp_path)) as host:
            assert host._conversation is not None
            assert host._conversation._channel.fileno() > 1024
            assert host.call("echo", {"a": 1}, deadline_s=10) == {"a": 1}
    finally:
        for fd in files:
            os.close(fd)


def test_interrupt_between_two_lines_of_a_call_does_not_hold_up_the_end(host: Host) -> None:
    # As when Ctrl-C strikes right after the lock was taken, or right before it is given back.
    host._busy.acquire()
    engine = hosts.named([host.pid])
    begun = time.monotonic()
    host.close()
    assert time.monotonic() - begun < 5
    assert hosts.running(engine) == []


def test_close_from_another_thread_ends_a_call_that_waits(host: Host) -> None:
    threading.Timer(0.3, host.close).start()
    begun = time.monotonic()
    error = failure_of(host, "slow", {"seconds": 30}, deadline_s=30)
    assert time.monotonic() - begun < 3
    assert error.failure.id in ("host.engine-died", "host.failed-before")


def test_close_in_an_event_handler_ends_the_call_at_once(host: Host) -> None:
    begun = time.monotonic()
    error = failure_of(host, "count_forever", on_event=lambda event: host.close())
    assert time.monotonic() - begun < 3
    assert not host.alive
    assert isinstance(error, EngineFailed)


@pytest.mark.parametrize("text", ["no message\n", '{"id": 1}\n'])
def test_garbage_on_the_wire_ends_the_engine_with_a_clear_error(host: Host, text: str) -> None:
    error = failure_of(host, "garbage", {"text": text})
    assert error.failure.id == "host.protocol"
    assert not host.alive


def test_reply_to_another_call_is_garbage(host: Host) -> None:
    error = failure_of(host, "garbage", {"text": '{"id": 77, "result": {}}\n'})
    assert error.failure.id == "host.protocol"
    assert "77" in error.failure.found


def test_line_without_an_end_is_cut_at_the_limit(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_wire, "MAX_MESSAGE_BYTES", 2**20)
    error = failure_of(host, "flood", {"bytes": 2**21})
    assert error.failure.id == "host.protocol"


def test_error_in_the_event_handler_goes_on_and_ends_the_engine(host: Host) -> None:
    engine = hosts.named([host.pid])

    def broken(event: dict[str, Any]) -> None:
        raise ZeroDivisionError("a full disk, say")

    with pytest.raises(ZeroDivisionError):
        host.call("count_forever", deadline_s=10, on_event=broken)
    assert failure_of(host, "echo").failure.id == "host.failed-before"
    assert hosts.running_after(engine, 5) == []


def test_call_before_start_and_after_close_is_a_usage_error(tmp_path: Path) -> None:
    host = Host(hosts.spec(tmp_path))
    with pytest.raises(UsageError) as caught:
        host.call("echo", deadline_s=1)
    assert caught.value.failure.id == "host.not-started"
    host.close()
    with pytest.raises(UsageError) as caught:
        host.start(1)
    assert caught.value.failure.id == "host.closed"


def test_two_hosts_at_once_do_not_disturb_each_other(shared: Host, host: Host) -> None:
    assert shared.pid != host.pid
    failure_of(host, "crash", {"signal": "SIGKILL"})
    assert shared.call("echo", {"a": 1}, deadline_s=10) == {"a": 1}
    host.close()
    assert shared.call("echo", {"a": 2}, deadline_s=10) == {"a": 2}
