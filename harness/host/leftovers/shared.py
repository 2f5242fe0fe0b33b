"""Files of shared memory that processes made, and that nobody removes after a SIGKILL.

Standard library only and free of other ``harness`` modules, because the reaper loads this
file by path. Only names that Python, torch, NCCL and vLLM give are looked at: a checkpoint or
a data set in ``/dev/shm`` is the user's, whoever maps it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = Path("/dev/shm")
_NAMES = ("psm_", "sem.mp-", "torch_", "nccl-", "vllm_", "vllm-", "cuda.shm.")
_seen: set[str] = set()


def mapped(pid: int) -> set[int]:
    """Return the inodes of the files in shared memory that a process maps now.

    Not their names: glibc makes a semaphore under another name than it ends up with, and its
    maker's map goes on to show that one.
    """
    try:
        text = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return set()
    start = os.fsencode(FOLDER) + b"/"
    return {int(line.split(None, 5)[4]) for line in text.splitlines() if start in line}


def present() -> dict[str, int]:
    """Return the inode of each such file that is there and belongs to this user."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(FOLDER):
            with contextlib.suppress(OSError):
                if _is_ours(entry.name) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    found[entry.name] = entry.inode()
    return found


def remove(names: Iterable[str], *, in_use: Iterable[str] = ()) -> list[str]:
    """Remove files of these names that nobody uses; return those that were removed."""
    kept = {*in_use}
    return [name for name in names if name not in kept and _removed(name)]


def remember(names: Iterable[str]) -> None:
    """Remember what engines of this process have made, for :func:`left`."""
    _seen.update(names)


def left() -> list[str]:
    """Return the names of what engines of this process have made and is still there."""
    _seen.intersection_update(present())
    return sorted(_seen)


def used_by(pids: Iterable[int]) -> set[str]:
    """Return the names of such files that any of these processes maps now."""
    inodes = set().union(*map(mapped, pids))
    return {name for name, inode in present().items() if inode in inodes} if inodes else set()


def everyone() -> Iterator[int]:
    """Yield the pids of all visible processes."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _removed(name: str) -> bool:
    if not _is_ours(name):
        return False
    try:
        (FOLDER / name).unlink()
    except OSError:
        return False
    return True


def _is_ours(name: str) -> bool:
    return name.startswith(_NAMES) and "/" not in name
