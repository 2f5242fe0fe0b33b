"""The log of one engine: its size, what came lately, its end."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TAIL_BYTES = 64 * 1024


class Log:
    """The engine's log, from the point where this engine began.

    Args:
        path: The file, which may hold earlier runs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin = self.size()

    @property
    def begin(self) -> int:
        """Byte at which this engine's part begins."""
        return self._begin

    def size(self) -> int:
        """Return its size in bytes, 0 when it does not exist."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def settled(self, begin: int, seconds: float) -> list[str]:
        """Wait, at most ``seconds``, until lines came after ``begin`` and stopped; return them."""
        until = time.monotonic() + seconds
        last, size = -1, begin
        while time.monotonic() < until and (size == begin or size != last):
            time.sleep(0.1)
            last, size = size, self.size()
        try:
            with self.path.open("rb") as file:
                file.seek(begin)
                return file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
        except OSError:
            return []

    def tail(self, lines: int) -> list[str]:
        """Return the last lines that this engine has written."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._begin, end - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return text.splitlines()[-lines:]
