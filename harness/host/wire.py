"""The parent's end of the wire: JSON objects, one a line, over a non-blocking socket."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any

PROTOCOL = 1
MAX_MESSAGE_BYTES = 64 * 2**20
_CHUNK = 2**18


class ProtocolError(Exception):
    """What came over the wire is no message; the text says what it was."""


class Channel:
    """Whole messages out of and into a socket that never blocks.

    Args:
        connection: The parent's end; whoever opened it closes it.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._incoming = bytearray()
        self._seen = 0
        self._outgoing = bytearray()
        self._messages: deque[dict[str, Any]] = deque()
        self._ended = False

    def fileno(self) -> int:
        """Return the socket's number, for ``select``."""
        return self._connection.fileno()

    @property
    def ended(self) -> bool:
        """Whether either side has hung up."""
        return self._ended or self._connection.fileno() < 0

    @property
    def pending(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._outgoing) and not self.ended

    def put(self, message: Mapping[str, Any]) -> None:
        """Queue a message for sending.

        Raises:
            ProtocolError: It is longer than ``MAX_MESSAGE_BYTES``.
            TypeError: It does not fit JSON.
            ValueError: It holds a number that is not finite.
        """
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
        if len(line) > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a request of {len(line)} bytes, more than {MAX_MESSAGE_BYTES}")
        self._outgoing += line

    def take(self) -> dict[str, Any] | None:
        """Return the next message that arrived whole, oldest first."""
        return self._messages.popleft() if self._messages else None

    def flush(self) -> None:
        """Send what fits without blocking."""
        try:
            while self.pending:
                sent = self._connection.send(memoryview(self._outgoing)[:_CHUNK])
                del self._outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._ended = True

    def fill(self) -> None:
        """Read what is there without blocking.

        Raises:
            ProtocolError: It is not a JSON object, or it is too long.
        """
        try:
            # One round at most per call, so that a chatty peer cannot hold the caller here.
            for _ in range(64):
                data = self._connection.recv(_CHUNK)
                if not data:
                    self._ended = True
                    break
                self._incoming += data
                self._split()
        except BlockingIOError:
            pass
        except OSError:
            self._ended = True

    def _split(self) -> None:
        while (end := self._incoming.find(b"\n", self._seen)) >= 0:
            line = bytes(self._incoming[:end])
            del self._incoming[: end + 1]
            self._seen = 0
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                raise ProtocolError(f"a line that is no JSON object: {line[:200]!r}")
            self._messages.append(message)
        self._seen = len(self._incoming)
        if self._seen > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message longer than {MAX_MESSAGE_BYTES} bytes")
