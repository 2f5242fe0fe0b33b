"""Calls of a leased engine, each in a thread, and what they have for the keeper's loop."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from harness.errors import HarnessError
from harness.lease.messages import error_to_json
from harness.lease.refusals import keeper_failed


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


class Calls:
    """Runs one call at a time; a byte in a pipe wakes the loop that hands its messages on.

    Args:
        host: The engine.

    Attributes:
        lines: Messages, oldest first, each with whether it is its call's last one.
        reader: The pipe's end to poll.
        failure: What has ended the engine.
    """

    def __init__(self, host: Kept) -> None:
        self._host = host
        self._thread: threading.Thread | None = None
        self.failure: HarnessError | None = None
        self.lines: deque[tuple[dict[str, Any], bool]] = deque()
        self.reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def begin(self, id: int, op: str, params: dict[str, Any], deadline_s: float) -> None:
        """Begin a call; its messages carry ``id``."""
        arguments = (id, op, params, deadline_s)
        self._thread = threading.Thread(target=self._call, args=arguments, daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Between two calls: notice that the engine has died."""
        self.failure = self.failure or self._host.look()

    def wake(self) -> None:
        """Wake the loop; from any thread or signal handler."""
        with contextlib.suppress(OSError):
            os.write(self._writer, b".")

    def clear(self) -> None:
        """Take the bytes that have woken the loop."""
        with contextlib.suppress(OSError):
            os.read(self.reader, 65536)

    def close(self, seconds: float) -> None:
        """Wait for the last call; the pipe is closed once nobody can write to it any more."""
        if self._thread is not None:
            self._thread.join(seconds)
        if self._thread is None or not self._thread.is_alive():
            os.close(self.reader)
            os.close(self._writer)

    def _put(self, message: dict[str, Any], *, last: bool = False) -> None:
        self.lines.append((message, last))
        self.wake()

    def _call(self, id: int, op: str, params: dict[str, Any], deadline_s: float) -> None:
        def on_event(event: dict[str, Any]) -> None:
            self._put({**event, "id": id})

        try:
            result = self._host.call(op, params, deadline_s=deadline_s, on_event=on_event)
        except BaseException as error:
            if not self._host.alive:
                self.failure = error if isinstance(error, HarnessError) else keeper_failed(error)
            self._put({"id": id, "error": error_to_json(error)}, last=True)
        else:
            self._put({"id": id, "result": result}, last=True)
