"""What a lease has on disk: made for it alone, and removed after it."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.errors import Refused
from harness.lease.record import Book, Lease


def own_folder(folder: Path) -> None:
    """Make an empty folder; what is there already is somebody else's.

    Raises:
        Refused: ``lease.spool``.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise Refused(
            "lease.spool",
            expected="a new folder for samples on their way",
            found=str(error.strerror or error),
            where=str(folder),
            next="choose another folder with --spool",
        ) from error


def forget(lease: Lease, book: Book) -> None:
    """Remove what an ended lease has left on disk: record, logs, socket, spool."""
    shutil.rmtree(lease.spool, ignore_errors=True)
    shutil.rmtree(lease.folder, ignore_errors=True)
    book.path(lease.name).unlink(missing_ok=True)
