"""What is left when an engine has died: exit codes, death notes, the end of the log."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TAIL_BYTES = 64 * 1024


def exit_text(code: int) -> str:
    """Say how a process ended; ``code`` is negative for a signal."""
    if code < 0:
        return f"killed by {signal_name(code)}"
    return f"exit code {code}"


def signal_name(code: int) -> str | None:
    """Return the name of the signal in an exit code, ``None`` if there is none in it."""
    if code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


@dataclass(frozen=True)
class DeathNote:
    """One worker's abnormal end, noted by the process that started it."""

    pid: int
    name: str
    exitcode: int

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}): {exit_text(self.exitcode)}"


class DeathNotes:
    """The notes file, read as it grows.

    Args:
        path: The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, limit: int | None = None) -> list[DeathNote]:
        """Return the whole notes so far, at most those in the first ``limit`` bytes."""
        try:
            with self._path.open("rb") as file:
                data = file.read(-1 if limit is None else limit)
        except OSError:
            return []
        notes = []
        for line in data.split(b"\n")[:-1]:
            note = _parse(line)
            if note is not None:
                notes.append(note)
        return notes


def _parse(line: bytes) -> DeathNote | None:
    try:
        raw: Any = json.loads(line)
        return DeathNote(pid=int(raw["pid"]), name=str(raw["name"]), exitcode=int(raw["exitcode"]))
    except (ValueError, KeyError, TypeError):
        # Written by a process on its way down: an unreadable note is still a death.
        text = line.decode("utf-8", "replace").strip()
        return DeathNote(pid=0, name=f"note {text[:200]!r}", exitcode=1) if text else None


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
