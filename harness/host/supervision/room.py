"""Room in host memory and shared memory, and whether an engine is about to run out of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

MIB: Final = 2**20
GIB: Final = 2**30

SHM_FLOOR: Final = 8 * MIB
"""One NCCL segment takes 7,340,384 bytes (torchtitan#853): below this the next one fails."""


@dataclass(frozen=True)
class Room:
    """What is left on the machine; None where it cannot be read.

    Attributes:
        memory: Bytes that processes here can still get: of the host, or of the tightest
            control group above this process, whichever is less. Cache that can be dropped counts.
        memory_total: The host's, or that group's limit.
        shm: Free bytes of ``/dev/shm``.
        shm_total: Its size.
    """

    memory: int | None
    memory_total: int | None
    shm: int | None
    shm_total: int | None


class RoomProbe(Protocol):
    """Tells what is left."""

    def room(self) -> Room:
        """Read it; takes well under a millisecond."""


def memory_floor(total: int) -> int:
    """Bytes of memory below which the kernel is about to kill: 1 %, from 128 MiB to 4 GiB."""
    return min(4 * GIB, max(128 * MIB, total // 100))


def shortage(now: Room, at_start: Room) -> tuple[str, str] | None:
    """Return what is about to run out: ``memory`` or ``shm``, and a sentence; None for nothing.

    Shared memory that was that small from the start is no news, and preflight's business.
    """
    if now.memory is not None and now.memory_total:
        floor = memory_floor(now.memory_total)
        if now.memory < floor:
            return "memory", (
                f"{_mib(now.memory)} of {_mib(now.memory_total)} host memory left, less than "
                f"{_mib(floor)}: the kernel will kill a process of its own choice"
            )
    started = at_start.shm
    if now.shm is not None and started is not None and now.shm < SHM_FLOOR <= started:
        return "shm", (
            f"{_mib(now.shm)} of /dev/shm left (of {_mib(now.shm_total or 0)}; "
            f"{_mib(started)} at the start)"
        )
    return None


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"


@dataclass(frozen=True)
class LinuxRoom:
    """The machine that this runs on.

    Attributes:
        root: Where its ``/proc``, ``/sys`` and ``/dev`` are.
    """

    root: Path = field(default=Path("/"))

    def room(self) -> Room:
        """Read memory, control groups and shared memory."""
        total, free = self._host_memory()
        for limit, left in self._groups():
            if free is None or left < free:
                total, free = limit, left
        shm, shm_total = self._shm()
        return Room(free, total, shm, shm_total)

    def _host_memory(self) -> tuple[int | None, int | None]:
        values = _table(self.root / "proc/meminfo")
        total, free = values.get("MemTotal:"), values.get("MemAvailable:")
        return (total * 1024 if total else None), (free * 1024 if free is not None else None)

    def _groups(self) -> list[tuple[int, int]]:
        """Limit and what is left of each control group above us, in either version."""
        found = []
        for folder in self._folders():
            limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
            used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
            if limit is None or used is None:
                continue  # Version 1 writes a number near 2**63 for "no limit": never the least.
            stat = _table(folder / "memory.stat")
            cache = sum(
                stat.get(f"total_{name}", stat.get(name, 0))
                for name in ("inactive_file", "active_file")
            )
            found.append((limit, max(0, limit - max(0, used - cache))))
        return found

    def _folders(self) -> list[Path]:
        try:
            lines = (self.root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            return []
        folders: list[Path] = []
        for line in lines:
            number, controllers, path = line.split(":", 2)
            if number == "0":
                base = self.root / "sys/fs/cgroup"
            elif "memory" in controllers.split(","):
                base = self.root / "sys/fs/cgroup/memory"
            else:
                continue
            here = base / path.lstrip("/")
            folders += [here, *(parent for parent in here.parents if parent.is_relative_to(base))]
        return folders

    def _shm(self) -> tuple[int | None, int | None]:
        try:
            found = os.statvfs(self.root / "dev/shm")
        except OSError:
            return None, None
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # Missing, or "max".


def _table(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}
