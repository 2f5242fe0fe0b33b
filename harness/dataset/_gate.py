"""Decides whether a folder may be the output of a run, before anything in it is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.dataset._heal import INTENT, SPOOL
from harness.dataset._lock import FolderLock
from harness.dataset.manifest import MANIFEST
from harness.dataset.run_info import RUN_FILE, RunIdentity, differences, read_run
from harness.errors import HarnessError, Refused

# What a run leaves that ended before its run.json, and what a fresh mount holds.
_EMPTY = {
    FolderLock.NAME,
    SPOOL,
    INTENT,
    MANIFEST,
    f".{RUN_FILE}.tmp",
    f".{MANIFEST}.tmp",
    "lost+found",
}
_SHOWN = 5


def admit(folder: Path, identity: RunIdentity) -> None:
    """Return where the folder is missing, empty or holds this very run; refuse otherwise.

    Raises:
        Refused: Ids ``dataset.not-a-folder``, ``dataset.foreign-folder``,
            ``dataset.run-unreadable``, ``dataset.other-run``, ``dataset.unreachable``.
    """
    try:
        names = {entry.name for entry in folder.iterdir()}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise _refusal("not-a-folder", "a folder", "a file", folder) from None
    except OSError as error:
        raise _refusal(
            "unreachable", "a folder that can be read", error.strerror or str(error), folder
        ) from error
    if RUN_FILE in names:
        _same_run(folder, identity)
    elif (names - _EMPTY) or _has_lines(folder):
        other = sorted(names - _EMPTY) or [MANIFEST]
        shown = ", ".join(other[:_SHOWN]) + (", ..." if len(other) > _SHOWN else "")
        raise _refusal(
            "foreign-folder", "an empty folder, or one of this run", f"{shown}, no run.json", folder
        )


def _same_run(folder: Path, identity: RunIdentity) -> None:
    try:
        body = read_run(folder)
    except (OSError, ValueError) as error:
        raise _refusal("run-unreadable", "the run.json of a run", str(error), folder) from error
    theirs: Any = body.get("identity")
    found = differences(identity, theirs if isinstance(theirs, dict) else {})
    if found:
        raise _refusal(
            "other-run",
            "; ".join(f"{name} {ours}" for name, ours, _ in found),
            "; ".join(f"{name} {theirs}" for name, _, theirs in found),
            folder,
            differs=[name for name, _, _ in found],
        )


def _has_lines(folder: Path) -> bool:
    try:
        return (folder / MANIFEST).stat().st_size > 0
    except OSError:
        return False


def _refusal(id: str, expected: str, found: str, folder: Path, **details: Any) -> HarnessError:
    return Refused(
        f"dataset.{id}",
        expected=expected,
        found=found,
        where=str(folder),
        next="choose another --out",
        **details,
    )
