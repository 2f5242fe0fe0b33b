"""The processes of this machine, read from ``/proc``."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import state
from harness.host import processes
from harness.host.leftovers.record import TOKEN
from harness.preflight._owners import ProcessFacts

_PROC = Path("/proc")
_FIRST_NAMESPACE = "pid:[4026531836]"
"""Name of the host's own pid namespace; the kernel gives it this number at boot."""
_SIGKILL = 9
_LONGEST = 400


class SystemProcesses:
    """What ``/proc`` shows. Nothing is signalled."""

    @cached_property
    def host(self) -> bool:
        """Whether pids here are the host's."""
        try:
            return str((_PROC / "self/ns/pid").readlink()) == _FIRST_NAMESPACE
        except OSError:
            return False

    def find(self, pid: int) -> ProcessFacts | None:
        """Return the process with a pid."""
        process = processes.read(pid)
        return None if process is None else self._describe(process)

    def openers(self, minor: int) -> tuple[ProcessFacts, ...]:
        """Return the processes that have a device's file open, as far as one may look."""
        wanted = f"/dev/nvidia{minor}"
        return tuple(
            self._describe(process)
            for process in processes.everything()
            if wanted in (_open_files(process.pid) or ())
        )

    def _describe(self, process: processes.Process) -> ProcessFacts:
        opened = _open_files(process.pid)
        return ProcessFacts(
            pid=process.pid,
            start=process.start,
            user=_user(process.pid),
            command=_command(process.pid) or process.name,
            age=max(0.0, _uptime() - process.start / os.sysconf("SC_CLK_TCK")),
            state=process.state,
            parent=process.parent,
            killed=_killed(process.pid),
            opens_gpu=None if opened is None else any(map(_is_gpu, opened)),
            ours=_marked(process.pid) or (process.pid, process.start) in self._recorded,
        )

    @cached_property
    def _recorded(self) -> frozenset[tuple[int, int]]:
        folder = state.state_folder()
        folders = (folder / state.ENGINES, folder / state.LEASES)
        found = [record for place in folders for _, record in state.records(place)]
        return frozenset(_named(found))


def _marked(pid: int) -> bool:
    """Tell whether the harness started it: its environment says so, if one may read it."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(entry.startswith(f"{TOKEN}=".encode()) for entry in environment)


def _named(value: Any) -> Iterable[tuple[int, int]]:
    """Find every process that a record names, wherever it stands in it."""
    if isinstance(value, dict):
        pid, start = value.get("pid"), value.get("start")
        if isinstance(pid, int) and isinstance(start, int):
            yield pid, start
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from _named(entry)


def _is_gpu(path: str) -> bool:
    name = path.removeprefix("/dev/nvidia")
    return name != path and name.isdigit()


def _open_files(pid: int) -> list[str] | None:
    found = []
    try:
        for entry in os.scandir(_PROC / str(pid) / "fd"):
            try:
                found.append(str(Path(entry.path).readlink()))
            except OSError:
                continue  # closed meanwhile
    except OSError:
        return None
    return found


def _command(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    text = " ".join(word.decode("utf-8", "replace") for word in words if word)
    return text[:_LONGEST].strip()


def _user(pid: int) -> str:
    try:
        number = (_PROC / str(pid)).stat().st_uid
    except OSError:
        return "?"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _killed(pid: int) -> bool:
    """Whether a SIGKILL is pending, which a process can only be slow to obey in the kernel."""
    try:
        text = (_PROC / str(pid) / "status").read_text("utf-8", "replace")
    except OSError:
        return False
    for line in text.splitlines():
        if (
            line.startswith(("ShdPnd:", "SigPnd:"))
            and int(line.split()[1], 16) >> (_SIGKILL - 1) & 1
        ):
            return True
    return False


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
