"""An append-only file whose failed writes leave no trace."""

from __future__ import annotations

import os
from pathlib import Path


class AppendFile:
    """Appends whole records; a record that cannot be written in full is taken back."""

    def __init__(self, path: Path) -> None:
        """Open the file, creating it where it is missing.

        Raises:
            OSError: It cannot be opened.
        """
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size

    def append(self, record: bytes) -> None:
        """Write a record at the end.

        Raises:
            OSError: It could not be written; the file is as it was.
        """
        try:
            self._write(record, self._size)
        except OSError:
            # Cutting a file needs no room, so this works on a full disk.
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(record)

    def replace_content(self, record: bytes) -> None:
        """Make the record the whole content of the file.

        Raises:
            OSError: It could not be written; the file is empty or torn then.
        """
        os.ftruncate(self._fd, 0)
        self._write(record, 0)
        self._size = len(record)

    def sync(self) -> None:
        """Make what was written durable."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, record: bytes, offset: int) -> None:
        # A nearly full disk takes a part of a write without an error; the rest then fails.
        done = 0
        while done < len(record):
            done += os.pwrite(self._fd, record[done:], offset + done)
