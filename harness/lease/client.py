"""The session's end of a lease: an engine that somebody else keeps, used as if it were ours."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable
from typing import Any

from harness.errors import EngineFailed, HarnessError, UsageError
from harness.host.wire import Channel, ProtocolError
from harness.lease import address
from harness.lease.condition import judge
from harness.lease.messages import error_from_json
from harness.lease.record import PROTOCOL, Book, Lease

OnEvent = Callable[[dict[str, Any]], None]

_MARGIN_S = 15.0
"""On top of a call's deadline: the keeper cuts the call, and then has stacks and logs to read."""


class AttachedHost:
    """Stands where a :class:`harness.host.Host` would; ``close`` leaves the engine as it is.

    Keys of samples get the session's number in front, so that nothing that an earlier session
    has left unread can be taken for an answer.

    Args:
        lease: The lease, as read from its record.
        book: Where that record lies, to say why a lease has ended.
    """

    def __init__(self, lease: Lease, book: Book) -> None:
        self._lease, self._book = lease, book
        self._channel: Channel | None = None
        self._connection: Any = None
        self._number = 0
        self._session = 0
        self._failure: HarnessError | None = None
        self._closed = False

    def start(self, deadline_s: float = 60.0) -> dict[str, Any]:
        """Attach; does nothing where that was done.

        Raises:
            Refused: ``lease.busy``: another session is attached; ``lease.foreign-socket``.
            EngineFailed: ``lease.unreachable``, ``lease.no-answer``, ``lease.ended``.
        """
        self._check_open()
        if self._channel is not None:
            return {"session": self._session}
        try:
            self._connection = address.connect(self._lease.folder)
        except OSError as error:
            raise self._unreachable(str(error.strerror or error)) from error
        self._channel = Channel(self._connection)
        try:
            hello = self._next(time.monotonic() + deadline_s, "attach")
            if "refused" in hello:
                raise error_from_json(hello["refused"])
            if hello.get("protocol") != PROTOCOL or hello.get("lease") != self._lease.name:
                raise self._unreachable(f"a keeper of another kind: {str(hello)[:200]}")
        except BaseException as error:
            self._leave(error)
            raise
        self._session = int(hello["session"])
        return hello

    def call(
        self,
        op: str,
        params: dict[str, Any],
        *,
        deadline_s: float,
        on_event: OnEvent | None = None,
    ) -> dict[str, Any]:
        """Run one op in the leased engine; as :meth:`harness.host.Host.call`.

        A call that is left (Ctrl-C, a time limit, an error of ``on_event``) detaches this
        session; the keeper lets the engine finish and then serves the next one.

        Raises:
            HarnessError: As the keeper's host raised it, with its id and details;
                ``lease.ended``, ``lease.no-answer``, ``lease.detached``.
        """
        self._check_open()
        if self._channel is None:
            self.start()
        assert self._channel is not None
        self._number += 1
        message = {
            "id": self._number,
            "op": op,
            "params": self._with_keys(op, params),
            "deadline_s": deadline_s,
        }
        try:
            self._channel.put(message)
        except (ProtocolError, TypeError, ValueError) as error:
            raise UsageError(
                "host.bad-request",
                expected="parameters that fit one JSON message",
                found=str(error),
                where=f"op {op}",
                next="send tensors and long lists by file",
            ) from error
        try:
            reply = self._reply(op, time.monotonic() + deadline_s + _MARGIN_S, on_event)
        except BaseException as error:
            self._leave(error)
            raise
        if "error" in reply:
            raise error_from_json(reply["error"])
        result: dict[str, Any] = reply["result"]
        return result

    def close(self, deadline_s: float = 0.0) -> None:
        """Detach; the engine stays loaded. Repeatable."""
        self._closed = True
        self._hang_up()

    def _reply(self, op: str, deadline: float, on_event: OnEvent | None) -> dict[str, Any]:
        while True:
            message = self._next(deadline, op)
            if message.get("id") != self._number:
                raise self._unreachable(f"a message of another call: {str(message)[:200]}")
            if "event" not in message:
                return message
            if on_event is not None:
                event = {name: value for name, value in message.items() if name != "id"}
                on_event(self._without_key(event))

    def _next(self, deadline: float, op: str) -> dict[str, Any]:
        channel = self._channel
        assert channel is not None
        while (message := channel.take()) is None:
            if channel.ended:
                raise self._ended()
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late(op)
            poll = select.poll()
            poll.register(channel, select.POLLIN | (select.POLLOUT if channel.pending else 0))
            poll.poll(min(left, 1.0) * 1000)
            channel.flush()
            try:
                channel.fill()
            except ProtocolError as error:
                raise self._unreachable(str(error)) from error
        if "ended" in message:
            raise error_from_json(message["ended"])
        return message

    # Keys.

    def _with_keys(self, op: str, params: dict[str, Any]) -> dict[str, Any]:
        if op != "extract":
            return params
        samples = [{**s, "key": self._prefix + s["key"]} for s in params["samples"]]
        return {**params, "samples": samples}

    def _without_key(self, event: dict[str, Any]) -> dict[str, Any]:
        key = event.get("key")
        if isinstance(key, str) and key.startswith(self._prefix):
            return {**event, "key": key.removeprefix(self._prefix)}
        return event

    @property
    def _prefix(self) -> str:
        return f"s{self._session}-"

    # Ends.

    def _leave(self, cause: BaseException) -> None:
        """Detach in the middle of something; later calls name the cause."""
        self._failure = cause if isinstance(cause, HarnessError) else self._interrupted()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection = self._channel = None

    def _check_open(self) -> None:
        if self._failure is not None:
            raise EngineFailed(
                "lease.detached",
                expected="a session that is attached",
                found=f"it left the lease after {self._failure.failure.id}",
                where=f"lease `{self._lease.name}`",
                next="look at the first failure; harness engine status tells of the engine",
                cause=self._failure,
            )
        if self._closed:
            raise UsageError(
                "host.closed",
                expected="a session that is attached",
                found="one that has detached",
                where=f"lease `{self._lease.name}`",
                next="attach anew",
            )

    def _ended(self) -> HarnessError:
        """Say why the keeper hung up, as far as the record or the system knows."""
        now = self._book.read(self._lease.name)
        why = str(judge(now)) if now is not None else "stopped"
        return self._failed("lease.ended", "a lease that lasts as long as the session", why)

    def _late(self, op: str) -> HarnessError:
        return self._failed(
            "lease.no-answer", f"an answer to {op} within its deadline", "none from the keeper"
        )

    def _unreachable(self, found: str) -> HarnessError:
        return self._failed("lease.unreachable", "the lease's keeper answers", found)

    def _interrupted(self) -> HarnessError:
        return self._failed(
            "host.interrupted", "a call runs to its end", "it was left by the session"
        )

    def _failed(self, id: str, expected: str, found: str) -> EngineFailed:
        where = f"lease `{self._lease.name}`, keeper pid {self._lease.keeper.pid}"
        next = "harness engine status"
        return EngineFailed(id, expected=expected, found=found, where=where, next=next)
