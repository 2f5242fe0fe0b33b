"""Why an environment cannot be made: each reason as one error that says what to do.

The shape is that of :mod:`harness.errors`, which is not imported: this has to speak on a
Python that is too old for the harness.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

GIB = 1 << 30
# Room for an environment, and for the wheels that pip holds until it is done.
ROOM = 5 * GIB
ROOM_FOR_WHEELS = 2 * GIB
_OLDEST_PYTHON = (3, 11)
_COMPILERS = ("cc", "gcc", "clang")
_NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeout",
    "ReadTimeout",
    "ProxyError",
    "Network is unreachable",
)


class LaneError(Exception):
    """The environment cannot be made; says what to do, as every error of the harness does."""

    def __init__(self, id: str, *, expected: str, found: str, where: object, next: str) -> None:
        self.id = id
        super().__init__(
            f"{id}\n  expected: {expected}\n  found:    {found}\n"
            f"  where:    {where}\n  next:     {next}"
        )


def explain(command: str, output: str, log: Path) -> LaneError:
    """Turn the output of a failed command into the one error that it means."""
    lines = [line for line in output.splitlines() if line.strip()]
    last = "\n            ".join(lines[-8:]) or "no output"
    if "No space left on device" in output:
        return _disk_full("No space left on device", log)
    if any(word in output for word in _NO_NETWORK):
        return LaneError(
            "lane.no-network",
            expected="a package index that pip can reach",
            found=last,
            where=log,
            next="check the network and pip's settings (`pip config list`), run it again",
        )
    if "No matching distribution found" in output:
        return LaneError(
            "lane.no-wheel",
            expected=f"a wheel for Python {platform.python_version()} on {platform.machine()}",
            found=last,
            where=log,
            next="take another Python with `make PYTHON=python3.11 ...`",
        )
    return LaneError(
        "lane.failed", expected=f"{command} to end well", found=last, where=log, next=f"read {log}"
    )


def explain_os_error(error: OSError, where: Path) -> LaneError:
    """Turn an error of the operating system into the one error that it means."""
    if error.errno == errno.ENOSPC:
        return _disk_full("No space left on device", where)
    return LaneError(
        "lane.failed",
        expected="a folder that can be written",
        found=str(error),
        where=where,
        next="check its permissions, run it again",
    )


def _disk_full(found: str, where: Path, needed: int = ROOM) -> LaneError:
    return LaneError(
        "lane.disk-full",
        expected=f"{needed / GIB:.0f} GiB free",
        found=found,
        where=where,
        next="free some space (TMPDIR may name another folder for pip's wheels), run it again",
    )


def check_python(version: Sequence[int]) -> None:
    """Refuse a Python that the harness cannot run on."""
    if tuple(version[:2]) < _OLDEST_PYTHON:
        raise LaneError(
            "lane.old-python",
            expected="Python 3.11 or newer",
            found="Python " + ".".join(map(str, version[:3])),
            where=sys.executable,
            next="name a newer one: make PYTHON=python3.11 ...",
        )


def check_room(folder: Path, needed: int) -> None:
    """Refuse to start on a disk that is too full to end."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise _disk_full(f"{free / GIB:.1f} GiB free", folder, needed)


def find_compiler(reason: str) -> str:
    """Return a C compiler."""
    for name in (os.environ.get("CC", ""), *_COMPILERS):
        if name and shutil.which(name) and shutil.which("readelf"):
            return name
    raise LaneError(
        "lane.no-compiler",
        expected="a C compiler and readelf (binutils): " + reason,
        found="none of " + ", ".join(_COMPILERS) + " with readelf",
        where="PATH",
        next="install one (on Debian: apt-get install gcc), run it again",
    )
