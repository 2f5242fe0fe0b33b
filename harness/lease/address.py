"""Where a keeper is reached: a unix socket in the lease's private folder."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from harness.errors import Refused

SOCKET = "socket"
_BACKLOG = 8


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Name the socket through an open folder: a socket's path has at most 107 bytes."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


def listen(folder: Path) -> socket.socket:
    """Open the socket, for its owner alone.

    Args:
        folder: The lease's folder, of mode 0700.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(folder) as path:
            listener.bind(path)
            Path(path).chmod(0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(folder: Path) -> socket.socket:
    """Reach the keeper of a lease.

    Raises:
        Refused: ``lease.foreign-socket``: somebody else could have put it there.
        OSError: Nobody listens.
    """
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise Refused(
            "lease.foreign-socket",
            expected="a folder of your own that nobody else may enter",
            found=f"owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}",
            where=str(folder),
            next="harness engine stop, then start the lease again",
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(folder) as path:
            connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user number of the process at the other end, as the kernel knows them."""
    size = struct.calcsize("3i")
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user, _ = struct.unpack("3i", raw)
    return int(pid), int(user)
