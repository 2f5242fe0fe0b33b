"""The keeper's loop: one client at a time, its calls forwarded to the engine, nothing lost.

A call runs in a thread of its own, so that the loop can go on to watch the client, the engine,
the clock and whoever else knocks. A client that vanishes in the middle of a call does not end
the engine: the call runs to its end, what it wrote is removed, and then the next one may come.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from harness.errors import HarnessError, Refused
from harness.host import processes
from harness.host.wire import Channel, ProtocolError
from harness.lease import address
from harness.lease.messages import error_to_json
from harness.lease.record import PROTOCOL, Client
from harness.lease.refusals import busy, ended, keeper_failed, refuse_op

SPOOL_KEEPS: Final = "results.jsonl"
"""The engine reads on in this file: it must stay as it is for the engine's whole life."""

_NOT_FORWARDED = frozenset(("load", "configure", "shutdown"))
_LOOK_S = 0.5
_FAREWELL_S = 2.0
_COMMAND = 160


class Kept(Protocol):
    """The part of :class:`harness.host.Host` that a keeper uses."""

    @property
    def alive(self) -> bool:
        """Whether a call can be made."""

    def look(self) -> HarnessError | None:
        """Between two calls: what has ended the engine."""

    def call(
        self,
        op: str,
        params: dict[str, Any],
        *,
        deadline_s: float,
        on_event: Callable[[dict[str, Any]], None] | None = ...,
    ) -> dict[str, Any]:
        """Run one op in the engine."""


@dataclass(frozen=True)
class End:
    """Why a service ended.

    Attributes:
        kind: ``stopped``, ``expired`` or ``died``.
        reason: In one line.
    """

    kind: str
    reason: str


@dataclass
class _Session:
    """The client that is served."""

    connection: socket.socket
    channel: Channel
    client: Client
    working: bool = False
    gone: bool = False


@dataclass
class _Mail:
    """What the call's thread has for the loop; a byte in the pipe says that there is some."""

    lines: deque[tuple[dict[str, Any], bool]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def put(self, message: dict[str, Any], *, last: bool = False) -> None:
        self.lines.append((message, last))
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.writer, b".")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self.reader, 65536)

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class Service:
    """Serves one leased engine until it ends.

    Args:
        host: The engine.
        listener: The socket where clients knock.
        name: The lease's name.
        spool: Folder of the samples; emptied after each client.
        expires: When the lease ends, on the monotonic clock.
        on_client: Called with the number of sessions so far and whoever is served now.
    """

    def __init__(
        self,
        host: Kept,
        listener: socket.socket,
        *,
        name: str,
        spool: Path,
        expires: float,
        on_client: Callable[[int, Client | None], None],
    ) -> None:
        self._host, self._listener, self._name = host, listener, name
        self._spool, self._expires, self._on_client = spool, expires, on_client
        self._mail = _Mail()
        self._session: _Session | None = None
        self._sessions = 0
        self._stopped = False
        self._failure: HarnessError | None = None
        self._thread: threading.Thread | None = None

    def stop(self) -> None:
        """End the service soon; from any thread or signal handler."""
        self._stopped = True
        self._mail.wake()

    def serve(self) -> End:
        """Serve until there is a reason to end; the caller ends the engine."""
        next_look = 0.0
        while True:
            now = time.monotonic()
            if now >= next_look:
                next_look = now + _LOOK_S
                self._look()
            if (end := self._reason()) is not None:
                self._say_farewell(end)
                return end
            self._wait(min(_LOOK_S, max(0.0, self._expires - now)))
            self._deliver()

    def close(self) -> None:
        """Close what the service has opened, once the engine and so the last call has ended."""
        if self._session is not None:
            self._session.connection.close()
            self._session = None
        if self._thread is not None:
            self._thread.join(_FAREWELL_S)
        if self._thread is None or not self._thread.is_alive():
            self._mail.close()

    def _look(self) -> None:
        """Notice that the engine has died while nobody called it."""
        if self._session is None or not self._session.working:
            self._failure = self._failure or self._host.look()

    def _reason(self) -> End | None:
        if self._failure is not None:
            failure = self._failure.failure
            return End("died", f"{failure.id}: {_first_line(failure.found)}")
        if self._stopped:
            return End("stopped", "it was stopped")
        if time.monotonic() >= self._expires:
            return End("expired", "its time was over")
        return None

    def _wait(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._mail.reader, select.POLLIN)
        session = self._session
        if session is not None and not session.gone:
            pending = select.POLLOUT if session.channel.pending else 0
            poll.register(session.channel, select.POLLIN | pending)
        for fd, _ in poll.poll(seconds * 1000):
            if fd == self._listener.fileno():
                self._accept()
            elif fd == self._mail.reader:
                self._mail.clear()
            elif session is not None and fd == session.channel.fileno():
                self._hear(session)

    # Clients.

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if self._session is not None and not self._session.gone:
            self._hear(self._session)  # It may have hung up a moment before the next one knocks.
        pid, user = address.peer(connection)
        if user != os.getuid():
            connection.close()
        elif self._session is not None:
            _turn_away(connection, busy(self._name, self._session.client))
        else:
            self._begin(connection, pid)

    def _begin(self, connection: socket.socket, pid: int) -> None:
        self._sessions += 1
        process = processes.read(pid)
        client = Client(
            pid=pid,
            start=process.start if process else 0,
            command=_command(pid),
            since=time.time(),
        )
        self._session = _Session(connection, Channel(connection), client)
        self._session.channel.put(
            {
                "event": "hello",
                "protocol": PROTOCOL,
                "lease": self._name,
                "session": self._sessions,
            }
        )
        self._on_client(self._sessions, client)

    def _hear(self, session: _Session) -> None:
        session.channel.flush()
        try:
            session.channel.fill()
        except ProtocolError:
            session.gone = True
        while not session.gone and (message := session.channel.take()) is not None:
            self._begin_call(session, message)
        if session.channel.ended or session.gone:
            self._lose(session)

    def _lose(self, session: _Session) -> None:
        """The client has gone, orderly or not; a call of its goes on without it."""
        session.gone = True
        session.connection.close()
        if session.working:
            client = session.client
            session.client = Client(**{**vars(client), "gone": True})
            self._on_client(self._sessions, session.client)
        else:
            self._clear()

    def _clear(self) -> None:
        """Make room for the next client; nothing of the last one is left."""
        self._session = None
        empty(self._spool)
        self._on_client(self._sessions, None)

    # Calls.

    def _begin_call(self, session: _Session, message: dict[str, Any]) -> None:
        try:
            id, op = int(message["id"]), str(message["op"])
            params, deadline_s = dict(message["params"]), float(message["deadline_s"])
        except (KeyError, TypeError, ValueError):
            session.gone = True
            return
        if session.working or op in _NOT_FORWARDED:
            session.channel.put(
                {"id": id, "error": error_to_json(refuse_op(self._name, op, _NOT_FORWARDED))}
            )
            session.channel.flush()
            return
        session.working = True
        arguments = (id, op, params, deadline_s)
        self._thread = threading.Thread(target=self._call, args=arguments, daemon=True)
        self._thread.start()

    def _call(self, id: int, op: str, params: dict[str, Any], deadline_s: float) -> None:
        def on_event(event: dict[str, Any]) -> None:
            self._mail.put({**event, "id": id})

        try:
            result = self._host.call(op, params, deadline_s=deadline_s, on_event=on_event)
        except BaseException as error:
            if not self._host.alive:
                self._failure = error if isinstance(error, HarnessError) else keeper_failed(error)
            self._mail.put({"id": id, "error": error_to_json(error)}, last=True)
        else:
            self._mail.put({"id": id, "result": result}, last=True)

    def _deliver(self) -> None:
        """Hand on what the call's thread has said; to nobody where the client is gone."""
        session = self._session
        while self._mail.lines and session is not None:
            message, last = self._mail.lines.popleft()
            if not session.gone:
                session.channel.put(message)
            session.working = session.working and not last
        if session is None:
            return
        session.channel.flush()
        if session.gone and not session.working:
            self._clear()

    def _say_farewell(self, end: End) -> None:
        """Tell a client why, before its connection goes."""
        session = self._session
        if session is None or session.gone:
            return
        self._deliver()
        if session.working or end.kind != "died":
            session.channel.put({"ended": error_to_json(ended(self._name, end.reason))})
        until = time.monotonic() + _FAREWELL_S
        while session.channel.pending and time.monotonic() < until:
            session.channel.flush()
            time.sleep(0.01)


def empty(spool: Path) -> None:
    """Remove every sample that was left in a spool."""
    with contextlib.suppress(OSError):
        for path in spool.iterdir():
            if path.name != SPOOL_KEEPS:
                path.unlink(missing_ok=True)


def _turn_away(connection: socket.socket, refusal: Refused) -> None:
    channel = Channel(connection)
    channel.put({"refused": error_to_json(refusal)})
    channel.flush()
    connection.close()


def _command(pid: int) -> str:
    text = processes.command_line(pid) or "?"
    return text if len(text) <= _COMMAND else text[: _COMMAND - 3] + "..."


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0].removesuffix("; last log lines:")
