"""The engine's end of the wire: serve operations over one local socket, JSON lines, no pickle.

Operations run on the main thread, one at a time, because an engine starts its own
processes and signal handlers there. Nothing here watches the socket while one runs:
that the parent is gone is the reaper's business, which needs no cooperation of a
process that may hang in native code. Between operations end-of-file ends the service.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from harness.inside import deaths

PROTOCOL = 1
MAX_MESSAGE_BYTES = 64 * 2**20

Emit = Callable[..., None]
Op = Callable[[dict[str, Any], Emit], dict[str, Any]]

_PR_SET_PDEATHSIG = 1


class OpError(Exception):
    """A failure that an operation foresaw; the engine stays usable after it.

    Attributes:
        id: Stable dotted id, such as ``engine.sample-not-written``.
        expected: What should have been there.
        found: What was there instead.
        where: The setting, file or process that it concerns.
        next: The next step for the user.
    """

    def __init__(self, id: str, *, expected: str, found: str, where: str, next: str) -> None:
        self.id = id
        self.expected = expected
        self.found = found
        self.where = where
        self.next = next
        super().__init__(f"{id}: expected {expected}; found {found} ({where})")


def serve(ops: Mapping[str, Op]) -> None:
    """Answer the parent's calls until ``shutdown`` or until the parent hangs up.

    Built in is ``shutdown``; an entry of that name in ``ops`` runs before the reply to it.
    Raising :class:`OpError` (or anything with a ``failure`` of the same fields) sends a
    structured error; any other exception sends its type, text and traceback.

    Args:
        ops: Name -> ``op(params, emit) -> result``; ``emit(event, **fields)`` sends an event
            from any thread while the operation runs. Results and fields must fit JSON.

    Raises:
        SystemExit: There is no control socket: the program was not started by a host.
    """
    number = os.environ.pop("HARNESS_CONTROL_FD", "")
    if not number.isdecimal():
        sys.exit("this program is started by the harness host; it has no control socket")
    die_with_parent()
    deaths.stacks_on_signal()
    connection = socket.socket(fileno=int(number))
    connection.set_inheritable(False)
    wire = _Wire(connection)
    wire.send(
        {
            "event": "hello",
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "protocol": PROTOCOL,
        }
    )
    while (request := wire.receive()) is not None:
        op = request["op"]
        if op == "shutdown":
            deaths.stop()
        wire.send(_answer(wire, request, ops))
        if op == "shutdown":
            break
    deaths.stop()
    connection.close()


def die_with_parent() -> None:
    """Ask the kernel to SIGKILL this process when the one that started it ends.

    The kernel watches the *thread* that started this process: call it only where that
    thread lives as long as its process does (a main thread).
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


class _Wire:
    """One socket, newline-delimited JSON objects, a size limit both ways."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def send(self, message: Mapping[str, Any]) -> None:
        line = _encode(message)
        with self._lock:
            self._connection.sendall(line)

    def receive(self) -> dict[str, Any] | None:
        """Return the next request, ``None`` at end-of-file."""
        seen = 0
        while (end := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            if seen > MAX_MESSAGE_BYTES:
                sys.exit(f"a request is longer than {MAX_MESSAGE_BYTES} bytes")
            try:
                data = self._connection.recv(2**18)
            except ConnectionError:
                return None
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        request: dict[str, Any] = json.loads(line)
        return request


class _Emitter:
    """Sends the events of one operation, and refuses to once it has ended."""

    def __init__(self, wire: _Wire, id: int) -> None:
        self._wire = wire
        self._id = id
        self._open = True
        self._lock = threading.Lock()

    def __call__(self, event: str, /, **fields: Any) -> None:
        with self._lock:
            if not self._open:
                raise RuntimeError(f"event {event!r} came after the end of its operation")
            self._wire.send({**fields, "id": self._id, "event": event})

    def close(self) -> None:
        with self._lock:
            self._open = False


def _answer(wire: _Wire, request: Mapping[str, Any], ops: Mapping[str, Op]) -> dict[str, Any]:
    id, name = request["id"], request["op"]
    op = ops.get(name, _nothing if name == "shutdown" else None)
    emitter = _Emitter(wire, id)
    try:
        if op is None:
            raise OpError(
                "wire.unknown-op",
                expected=f"one of {', '.join(sorted({*ops, 'shutdown'}))}",
                found=repr(name),
                where="the engine's service",
                next="use a harness of the same version on both sides",
            )
        reply = {"id": id, "result": op(request.get("params", {}), emitter)}
        _encode(reply)
    except Exception as error:
        reply = {"id": id, "error": _describe(error)}
    finally:
        emitter.close()
    return reply


def _nothing(params: dict[str, Any], emit: Emit) -> dict[str, Any]:
    return {}


def _describe(error: Exception) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "id": "engine.error",
        "type": type(error).__name__,
        "message": str(error)[:10_000],
        "traceback": "".join(traceback.format_exception(error))[-30_000:],
    }
    source = getattr(error, "failure", error)
    names = ("id", "expected", "found", "where", "next")
    if all(isinstance(getattr(source, name, None), str) for name in names):
        facts.update({name: getattr(source, name) for name in names}, foreseen=True)
    return facts


def _encode(message: Mapping[str, Any]) -> bytes:
    try:
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
    except ValueError as error:
        # Every comparison with NaN is false: sent as a figure it would pass the checks.
        raise OpError(
            "wire.not-finite",
            expected="finite numbers in a message",
            found=str(error),
            where="the engine's service",
            next="look for NaN or infinity in what the operation reports",
        ) from error
    if len(line) > MAX_MESSAGE_BYTES:
        raise OpError(
            "wire.too-big",
            expected=f"a message of at most {MAX_MESSAGE_BYTES} bytes",
            found=f"{len(line)} bytes",
            where="the engine's service",
            next="send tensors and long lists by file",
        )
    return line
