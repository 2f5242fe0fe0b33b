"""How much disk a run needs, and whether it is there, known before any engine starts."""

from __future__ import annotations

import os
from pathlib import Path

from harness.dataset._files import disk_error
from harness.errors import Refused

# Measured on written folders: header and padding of a sample, its manifest line.
_SAMPLE_OVERHEAD = 200 + 260
# int64 id of the sample; int64 id and loss mask in the Arrow folder.
_TOKEN_OVERHEAD = 8 + 16
_MARGIN = 1.05
_RESERVE = 64 << 20


def estimate_bytes(
    tokens: int, columns: int, hidden: int, itemsize: int, *, samples: int = 1
) -> int:
    """Return the size of a dataset in bytes; within 1 % once a sample has 50 KB.

    Args:
        tokens: Tokens of all samples together.
        columns: Depths in a sample.
        hidden: Width of a row.
        itemsize: Bytes of one value (bfloat16 2, float32 4).
        samples: Number of samples.
    """
    return tokens * (columns * hidden * itemsize + _TOKEN_OVERHEAD) + samples * _SAMPLE_OVERHEAD


def check_space(path: Path, need: int, *, samples: int = 0, margin: float = _MARGIN) -> int:
    """Refuse a run that would fill its disk.

    Args:
        path: The output folder; it need not exist yet.
        need: Bytes still to write, as from :func:`estimate_bytes`.
        samples: Files still to write.
        margin: Factor on ``need``; 64 MiB are added.

    Returns:
        The bytes that are free now.

    Raises:
        Refused: ``dataset.no-space`` (bytes or files), or a disk error where the disk cannot
            be asked.
    """
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        stat = os.statvfs(place)
    except OSError as error:
        raise disk_error(error, place, started=False) from error
    free = stat.f_bavail * stat.f_frsize
    wanted = int(need * margin) + _RESERVE
    # File systems without a fixed number of files report zero of zero.
    files = stat.f_favail if stat.f_files else samples
    if free < wanted or files < samples:
        short_of_files = free >= wanted
        raise Refused(
            "dataset.no-space",
            expected=f"{samples} free files" if short_of_files else f"{_size(wanted)} free",
            found=f"{files} free files" if short_of_files else f"{_size(free)} free",
            where=str(place),
            next="free some space, choose another --out, or extract fewer prompts or layers",
        )
    return free


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"
