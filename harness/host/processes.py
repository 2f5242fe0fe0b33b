"""Processes as facts: found in ``/proc``, named by pid and start time, signalled without a race.

Standard library only and free of other ``harness`` modules, because the reaper loads
this file by path. A pid alone is no name: the kernel hands it out again. A pid with its
start time is one, so every signal here goes to a :class:`Process` that still matches.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
_GONE_STATES = frozenset("ZXx")
_KEEPER = b"resource_tracker"


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        pid: Its number.
        start: Its start time in clock ticks since boot (``/proc/PID/stat``, field 22).
        parent: Pid of its parent when it was read.
        state: State letter when it was read (``R``, ``S``, ``Z``, ...).
        name: Short name when it was read (at most 15 bytes).
        group: Its process group when it was read.
        session: Its session when it was read.
    """

    pid: int
    start: int
    parent: int = field(default=0, compare=False)
    state: str = field(default="?", compare=False)
    name: str = field(default="", compare=False)
    group: int = field(default=0, compare=False)
    session: int = field(default=0, compare=False)

    @property
    def ended(self) -> bool:
        """Whether nothing runs any more: a zombie waits only to be collected."""
        return self.state in _GONE_STATES

    def to_json(self) -> dict[str, int | str]:
        """Return pid, start and name as a flat JSON object."""
        return {"pid": self.pid, "start": self.start, "name": self.name}


def read(pid: int) -> Process | None:
    """Read one process; ``None`` when there is none with this pid."""
    try:
        # Bytes: a name may hold anything, also ") " and undecodable text.
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    opening, closing = text.find(b"("), text.rfind(b")")
    fields = text[closing + 2 :].split()
    if opening < 0 or len(fields) < 20:
        return None
    return Process(
        pid=pid,
        start=int(fields[19]),
        parent=int(fields[1]),
        state=fields[0].decode("ascii", "replace"),
        name=text[opening + 1 : closing].decode("utf-8", "replace"),
        group=int(fields[2]),
        session=int(fields[3]),
    )


def everything() -> list[Process]:
    """Read every visible process."""
    found = (read(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process is not None]


def descendants(roots: Iterable[int]) -> list[Process]:
    """Find all children of ``roots``, and theirs, without the roots; zombies are included."""
    return below(roots, everything())


def below(roots: Iterable[int], among: Iterable[Process]) -> list[Process]:
    """Find the descendants of ``roots`` among processes that were read before."""
    children: dict[int, list[Process]] = {}
    for process in among:
        children.setdefault(process.parent, []).append(process)
    result: list[Process] = []
    seen = set(roots)
    queue = list(seen)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                result.append(child)
                queue.append(child.pid)
    return result


def marked(marker: str) -> list[Process]:
    """Find the processes that were started with ``marker`` (``NAME=value``) in the environment.

    A descendant keeps its environment through ``setsid`` and double forks. One that
    rewrites its title may overwrite it, so this complements the tree and replaces it not.
    """
    wanted = marker.encode()
    return [p for p in everything() if wanted in _environment_of(p.pid)]


def environment(pid: int) -> dict[str, str]:
    """Read the environment that a process was started with; empty where it may not be read."""
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in _environment_of(pid))
    return {name: value for name, _, value in pairs if name}


def _environment_of(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def command_line(pid: int) -> str:
    """Read the command line of a process as one text; empty for a zombie or a kernel thread."""
    try:
        return (
            (_PROC / str(pid) / "cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode("utf-8", "replace")
            .strip()
        )
    except OSError:
        return ""


def alive(process: Process) -> bool:
    """Tell whether this very process still runs (a zombie does not)."""
    now = read(process.pid)
    return now is not None and now == process and not now.ended


def keeps(process: Process) -> bool:
    """Tell whether this is Python's resource tracker, which removes leaked shared memory.

    It ends by itself, after cleaning, once the processes that it serves are gone;
    killed with them it would leave their segments in ``/dev/shm``.
    """
    try:
        return _KEEPER in (_PROC / str(process.pid) / "cmdline").read_bytes()
    except OSError:
        return False


def catches(process: Process, number: int) -> bool:
    """Tell whether the process has a handler of its own for a signal."""
    try:
        text = (_PROC / str(process.pid) / "status").read_bytes()
    except OSError:
        return False
    for line in text.splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def send(process: Process, number: int) -> bool:
    """Send a signal to this very process.

    Returns:
        Whether it was delivered; ``False`` when the process is gone, when the pid belongs
        to another one by now, or when the kernel refuses.
    """
    handle = -1
    try:
        # The handle pins the process, so that the start time read after it is the target's.
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # A kernel or sandbox without pidfd: check, then signal by number.
    try:
        if not alive(process):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(process.pid, number)
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True
