"""How a process ended: exit codes, and the notes of deaths that an engine leaves."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
