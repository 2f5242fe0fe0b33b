"""The engine's log read as it grows, one line at a time, with who wrote it and how loud.

Pure but for :class:`LogFollower`. Line forms are those of vLLM 0.16, 0.26 and 0.32: an
optional ``(Worker_TP0 pid=5)``, then for its own lines ``LEVEL date [file:line]``.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PROCESS = re.compile(r"^\((?P<name>[^()]*?) pid=(?P<pid>\d+)\) ?")
_LEVEL = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?"
)
_GLOG = re.compile(r"^\[?(?P<letter>[IWEF])\d{4} \d\d:\d\d:\d\d[^\]]*\] ?")
_GLOG_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_QUIET = ("DEBUG", "INFO", "WARNING")
_CHUNK = 2**18
_MOST_CHUNKS = 16
_LONGEST = 8192


@dataclass(frozen=True)
class LogLine:
    """One line of the engine's log.

    Attributes:
        text: What it says, without who and when.
        process: Who wrote it, such as ``Worker_TP1``; empty where it does not say.
        pid: Its pid there, 0 where it does not say.
        level: ``ERROR``, ``INFO``, ...; empty for what no logger has written (a traceback).
    """

    text: str
    process: str = ""
    pid: int = 0
    level: str = ""

    @property
    def quiet(self) -> bool:
        """Whether its writer itself calls it harmless."""
        return self.level in _QUIET

    @property
    def who(self) -> str:
        """The process with its pid, or ``the engine``."""
        return f"{self.process} (pid {self.pid})" if self.process else "the engine"


def parse(raw: str) -> LogLine:
    """Take a line apart; of a progress bar that was drawn over, what it shows last."""
    line = _ANSI.sub("", raw)
    process, pid, level = "", 0, ""
    if found := _PROCESS.match(line):
        process, pid = found["name"], int(found["pid"])
        line = line[found.end() :]
    line = line.rstrip("\r").rpartition("\r")[2]
    if found := _LEVEL.match(line):
        level = found["level"]
    elif found := _GLOG.match(line):
        level = _GLOG_LEVELS[found["letter"]]
    return LogLine(line[found.end() :] if found else line, process, pid, level)


class LogFollower:
    """Reads what is new in a file that others append to.

    A last line without an end is given as well, once it has stood still for a look: a
    question on standard input never ends its line.

    Args:
        path: The file; it need not exist yet.
        begin: Byte from which on to read.
    """

    def __init__(self, path: Path, begin: int) -> None:
        self._path = path
        self._at = begin
        self._rest = b""
        self._shown = b""
        self._fd = -1

    def read(self) -> list[LogLine]:
        """Return the lines since the last call; at most 4 MiB of them."""
        data = self._new()
        if not data:
            return self._standing()
        *whole, self._rest = (self._rest + data).split(b"\n")
        if self._shown and whole and whole[0] == self._shown:
            whole = whole[1:]  # It was given while it stood still.
        self._shown = b""
        self._rest = self._rest[-_LONGEST:]
        return [_decode(line) for line in whole if line.strip()]

    def close(self) -> None:
        """Let go of the file; the next call opens it again."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _standing(self) -> list[LogLine]:
        if not self._rest.strip() or self._rest == self._shown:
            return []
        self._shown = self._rest
        return [_decode(self._rest)]

    def _new(self) -> bytes:
        parts = []
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            for _ in range(_MOST_CHUNKS):
                data = os.pread(self._fd, _CHUNK, self._at)
                self._at += len(data)
                parts.append(data)
                if len(data) < _CHUNK:
                    break
        except OSError:
            self.close()
        return b"".join(parts)


def _decode(raw: bytes) -> LogLine:
    return parse(raw[:_LONGEST].decode("utf-8", "replace"))
