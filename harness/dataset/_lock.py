"""One writer a folder: an advisory lock that dies with its process."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

from harness.errors import Refused


class FolderLock:
    """Holds ``<folder>/.lock`` with flock.

    The kernel drops the lock when the process ends, however it ends, so a lock file that a
    dead process left behind is no obstacle. The file stays and is never removed: unlinking
    it would let two writers lock two different files of one name. The descriptor is not
    inherited by started programs.
    """

    NAME = ".lock"

    def __init__(self, folder: Path) -> None:
        """Take the lock or refuse at once.

        Raises:
            Refused: ``dataset.locked``; names the process that holds it.
            OSError: The lock file cannot be made.
        """
        path = folder / self.NAME
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(self._fd)
            os.close(self._fd)
            raise Refused(
                "dataset.locked",
                expected="one run at a time in an output folder",
                found=f"another run is writing there ({owner})",
                where=str(folder),
                next="wait for it to end, or choose another --out",
            ) from None
        except BaseException:
            os.close(self._fd)
            raise
        try:
            note = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, note, 0)
        except OSError:
            # The note only helps a message; a full disk is reported where it matters.
            pass

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _owner(fd: int) -> str:
    try:
        note = json.loads(os.pread(fd, 4096, 0))
        return f"process {note['pid']} on {note['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "process unknown"
