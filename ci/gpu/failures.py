"""Why a pack cannot be made or run: each reason as one error that says what to do.

The shape is that of :mod:`harness.errors`, which is not imported: this has to speak on a
machine that holds nothing of ours yet.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

GIB = 1 << 30


class GpuError(Exception):
    """The pack cannot be made or run; says what to do, as every error of the harness does."""

    def __init__(self, id: str, *, expected: str, found: str, where: object, next: str) -> None:
        self.id = id
        super().__init__(
            f"{id}\n  expected: {expected}\n  found:    {found}\n"
            f"  where:    {where}\n  next:     {next}"
        )


def check_room(folder: Path, needed: int) -> None:
    """Refuse to start on a disk that is too full to end."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise _disk_full(f"{free / GIB:.1f} GiB free", folder, f"{needed / GIB:.1f} GiB free")


def explain_os_error(error: OSError, where: object) -> GpuError:
    """Turn an error of the operating system into the one error that it means."""
    if error.errno == errno.ENOSPC:
        return _disk_full("No space left on device", where, "room for what is written")
    return GpuError(
        "gpu.failed",
        expected="files and folders that can be read and written",
        found=str(error),
        where=error.filename or where,
        next="check that it exists and its permissions, run it again",
    )


def _disk_full(found: str, where: object, expected: str) -> GpuError:
    return GpuError(
        "gpu.disk-full",
        expected=expected,
        found=found,
        where=where,
        next="free some space, or name another folder for scratch files with TMPDIR",
    )


def last_lines(text: str, count: int = 8) -> str:
    """Return the end of a program's output, as a ``found`` that stays readable."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n            ".join(lines[-count:]) or "no output"
