"""Host memory and time of a load."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.errors import Refused
from harness.estimate._model import Model
from harness.estimate._terms import Term
from harness.estimate._units import GIB, MIB

START_SECONDS = 60.0
"""Seconds of a start beside reading weights: import 16 to 30, one process to the next 10, profile
and cache 5 to 15 (measured on an H200; up to 65 more in a machine's very first process)."""

USUAL_RATE = 0.5e9
"""Bytes a second where nobody gives or measures any: Kimi-K2.5's weights in 20 minutes, as once
seen."""

_WORKER = 3 * GIB
_FRONT = 3 * GIB
_PIECE = 8 * MIB
_READ_MOST = 256 * MIB
_READ_LEAST = 16 * MIB


def host_terms(
    tensor_parallel_size: int, *, row_bytes: int, tokens: int, max_model_len: int
) -> tuple[Term, ...]:
    """Return what the engine's processes hold on the host; weights pass through the page cache.

    Args:
        tensor_parallel_size: Workers.
        row_bytes: Bytes of one token's captured rows.
        tokens: ``max_num_batched_tokens``.
        max_model_len: Tokens of the longest request.
    """
    rows = row_bytes * (2 * tokens + max_model_len)
    return (
        Term(
            "workers",
            _WORKER * tensor_parallel_size,
            "3 GiB each, a guess: not measured",
            "rule of thumb",
        ),
        Term(
            "engine core and front end",
            _FRONT,
            "3 GiB together, a guess: not measured",
            "rule of thumb",
        ),
        Term(
            "rows in flight, pinned",
            rows,
            "two steps and one prompt; 0.65 to 0.82 GB measured at 8,192 tokens",
            "rule of thumb",
        ),
    )


def page_cache_term(model: Model) -> Term:
    """Return the checkpoint in the page cache: wanted for speed, given back when asked for."""
    if model.at_load:
        source = "weights are made on the devices"
        return Term("checkpoint in the page cache", 0, source, "exact")
    source = "sizes of the files" if model.files is not None else "tensors of the checkpoint"
    return Term("checkpoint in the page cache", model.read_bytes, source, "exact")


def load_seconds(size: int, rate: float, *, start: float = START_SECONDS) -> float:
    """Return the seconds that a load should take.

    Args:
        size: Bytes that are read from disk.
        rate: Bytes a second.
        start: Seconds of everything else.

    Raises:
        ValueError: ``rate`` is not over 0.
    """
    if rate <= 0:
        raise ValueError(f"a read rate over 0, not {rate}")
    return start + size / rate


@dataclass(frozen=True)
class ReadRate:
    """How fast a folder's files could be read.

    Attributes:
        bytes: Bytes that were read.
        seconds: How long it took.
        files: How many files they came from.
    """

    bytes: int
    seconds: float
    files: int

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / max(self.seconds, 1e-9)


def measure_read(
    folder: Path,
    *,
    most: int = _READ_MOST,
    least: int = _READ_LEAST,
    clock: Callable[[], float] = time.perf_counter,
) -> ReadRate:
    """Read real files one after the other and time it.

    Nothing is dropped from the page cache first, so files that were read lately come from
    memory and look faster than their disk.

    Args:
        folder: A checkpoint (its ``*.safetensors`` are read), any folder with files, or one file.
        most: Bytes after which to stop.
        least: Bytes below which the time is that of opening files and not the disk's.
        clock: Seconds that only grow.

    Raises:
        Refused: ``estimate.nothing-to-read``, ``estimate.too-little-to-read``.
    """
    try:
        names = _files(folder)
        begin = clock()
        done = files = 0
        for name in names:
            if done >= most:
                break
            done += _read(name, most - done)
            files += 1
        seconds = clock() - begin
    except OSError as error:
        raise _nothing(folder, error.strerror or str(error)) from error
    if not done:
        raise _nothing(folder, "no bytes in it")
    if done < least:
        raise Refused(
            "estimate.too-little-to-read",
            expected=f"{least >> 20} MiB or more: fewer tell how fast files are opened, and "
            "nothing of the disk",
            found=f"{done:,} bytes in {files} " + ("file" if files == 1 else "files"),
            where=str(folder),
            next="name the checkpoint's folder, or give --read-rate",
        )
    return ReadRate(done, seconds, files)


def _files(folder: Path) -> list[Path]:
    # A file of the system's own may have no end, or wait for somebody.
    if folder.exists() and not os.statvfs(folder).f_blocks:
        raise OSError(errno.EINVAL, "it belongs to the system and is on no disk")
    if folder.is_file():
        return [folder]
    names = [path for path in sorted(folder.iterdir()) if path.is_file()]
    return [path for path in names if path.suffix == ".safetensors"] or names


def _read(path: Path, most: int) -> int:
    buffer = memoryview(bytearray(min(_PIECE, most)))
    done = 0
    with path.open("rb", buffering=0) as file:
        while done < most:
            count = file.readinto(buffer[: most - done])
            if not count:
                break
            done += count
    return done


def _nothing(folder: Path, found: str) -> Refused:
    return Refused(
        "estimate.nothing-to-read",
        expected="a folder with files to read",
        found=found,
        where=str(folder),
        next="name the checkpoint's folder, or give --read-rate",
    )
