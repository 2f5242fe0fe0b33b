"""File work shared by the dataset writers: atomic writes, checksums, clear disk errors."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from blake3 import blake3

from harness.errors import CheckFailed, HarnessError, Refused

_CHUNK = 16 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def disk_error(error: OSError, where: Path, *, started: bool) -> HarnessError:
    """Turn a failed file operation into the one error the user sees.

    Args:
        error: What the operating system said.
        where: The file or folder it concerns.
        started: Whether samples may exist already; the user's next step differs.

    Returns:
        The error to raise: a refusal ``dataset.disk-full`` or ``dataset.read-only``, or
        ``dataset.io-error``, which is a failed check once samples exist.
    """
    kind: type[HarnessError] = Refused
    keep = "the samples already listed are whole; run the same command again to go on"
    found = f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror or error}"
    if error.errno in _FULL:
        id, expected, fix = "disk-full", "room to write", "free some space"
    elif error.errno in _READ_ONLY:
        id, expected, fix = "read-only", "a folder that can be written", "make it writable"
    else:
        id, expected, fix = "io-error", "a disk that works", "check the disk and its mount"
        kind = CheckFailed if started else Refused
    next = f"{fix}; {keep}" if started else f"{fix}, or choose another --out"
    return kind(f"dataset.{id}", expected=expected, found=found, where=str(where), next=next)


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that its name shows the old content or the new, never a part.

    Temporary file in the same folder, fsync, rename, fsync of the folder.

    Raises:
        OSError: The write failed; the temporary file is gone and the old content stays.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        # The clean-up may fail like the write did (read-only disk); the first error counts.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable; file systems that cannot are left alone."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(fd)


def digest(data: bytes | bytearray | memoryview) -> str:
    """Return ``blake3:<hex>`` of bytes in memory, on all cores when they are many."""
    threads = blake3.AUTO if len(data) >= _CHUNK else 1
    return "blake3:" + blake3(data, max_threads=threads).hexdigest()


def file_checksum(path: Path) -> str:
    """Return ``blake3:<hex>`` of a whole file, reading it once in bounded memory.

    Plain reads, not a memory map: a file cut short meanwhile is then a wrong checksum and
    not a SIGBUS.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        hasher = blake3(max_threads=blake3.AUTO if size >= _CHUNK else 1)
        buffer = bytearray(min(size + 1, _CHUNK))
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            hasher.update(view[:count])
    return "blake3:" + hasher.hexdigest()
