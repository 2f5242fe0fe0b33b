"""Folder steps of a run: make it, undo that, put the prompts beside, move a file into place."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from harness.dataset._files import disk_error
from harness.dataset._lock import FolderLock
from harness.dataset.prompt_set import PromptSet


def prompts_beside(folder: Path, prompts: PromptSet, recorded: dict[str, str]) -> dict[str, str]:
    """Write the prompts' Arrow folder, unless the one there has the recorded checksums."""
    from harness.dataset.arrow import ARROW_FOLDER, folder_checksums, write_prompts

    target = folder / ARROW_FOLDER
    if recorded and folder_checksums(target) == recorded:
        return recorded
    return write_prompts(prompts, target)


def make_folder(folder: Path) -> bool:
    """Create the folder where it is missing; return whether it was."""
    if folder.is_dir():
        return False
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise disk_error(error, folder, started=False) from error
    return True


def undo_folder(folder: Path, *, made: bool, lock: FolderLock | None) -> None:
    """Take back what a failed opening made, and give the lock back."""
    if made and lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
    elif made:
        # Without the lock another run may own it by now: only an empty folder is removed.
        with contextlib.suppress(OSError):
            folder.rmdir()
    if lock is not None:
        lock.release()


def move(source: Path, target: Path) -> None:
    """Rename; across file systems copy to a hidden name beside the target, then rename."""
    try:
        source.rename(target)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    partial = target.with_name(f".{target.name}.part")
    try:
        with source.open("rb") as reader, partial.open("wb") as writer:
            shutil.copyfileobj(reader, writer, 16 << 20)
            writer.flush()
            os.fsync(writer.fileno())
        partial.rename(target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    source.unlink()
