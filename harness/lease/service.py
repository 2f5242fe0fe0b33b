"""The keeper's loop: one client at a time, its calls forwarded to the engine, nothing lost.

A call runs in a thread of its own (``calls``), so that the loop can go on to watch the client,
the engine, the clock and whoever else knocks. A client that vanishes in the middle of a call does
not end the engine: the call runs to its end, what it wrote is removed, and then the next one may
come.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness.errors import Refused
from harness.host import processes
from harness.host.wire import Channel, ProtocolError
from harness.lease import address
from harness.lease.calls import Calls, Kept
from harness.lease.messages import error_to_json
from harness.lease.record import PROTOCOL, Client
from harness.lease.refusals import busy, ended, refuse_op

SPOOL_KEEPS: Final = "results.jsonl"
"""The engine reads on in this file: it must stay as it is for the engine's whole life."""

_NOT_FORWARDED = frozenset(("load", "configure", "shutdown"))
_LOOK_S = 0.5
_FAREWELL_S = 2.0
_COMMAND = 160


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
        self._listener, self._name = listener, name
        self._spool, self._expires, self._on_client = spool, expires, on_client
        self._calls = Calls(host)
        self._session: _Session | None = None
        self._sessions = 0
        self._stopped = False

    def stop(self) -> None:
        """End the service soon; from any thread or signal handler."""
        self._stopped = True
        self._calls.wake()

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
        self._calls.close(_FAREWELL_S)

    def _look(self) -> None:
        """Notice that the engine has died while nobody called it."""
        if self._session is None or not self._session.working:
            self._calls.look()

    def _reason(self) -> End | None:
        if self._calls.failure is not None:
            failure = self._calls.failure.failure
            return End("died", f"{failure.id}: {_first_line(failure.found)}")
        if self._stopped:
            return End("stopped", "it was stopped")
        if time.monotonic() >= self._expires:
            return End("expired", "its time was over")
        return None

    def _wait(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._calls.reader, select.POLLIN)
        session = self._session
        if session is not None and not session.gone:
            pending = select.POLLOUT if session.channel.pending else 0
            poll.register(session.channel, select.POLLIN | pending)
        for fd, _ in poll.poll(seconds * 1000):
            if fd == self._listener.fileno():
                self._accept()
            elif fd == self._calls.reader:
                self._calls.clear()
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
        self._calls.begin(id, op, params, deadline_s)

    def _deliver(self) -> None:
        """Hand on what the call's thread has said; to nobody where the client is gone."""
        session = self._session
        while self._calls.lines and session is not None:
            message, last = self._calls.lines.popleft()
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
