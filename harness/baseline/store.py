"""Baselines as files: one a key, written whole, never overwritten without a word."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.baseline.entry import Baseline, admit
from harness.baseline.key import Key, differences
from harness.data import data_path
from harness.errors import CheckFailed, NotComparable, Refused

FOLDER = "baselines/throughput"
"""Name of the folder with the program's own baselines, for :func:`harness.data.data_path`."""


@dataclass(frozen=True)
class Stored:
    """A baseline and the file that holds it."""

    path: Path
    baseline: Baseline


@dataclass(frozen=True)
class Found:
    """What is recorded for one key: an entry, or the reason why there is none."""

    entry: Baseline | None
    reason: str = ""


def packed() -> Path | None:
    """Return the folder of the program's own baselines; None where it lacks one."""
    try:
        return data_path(FOLDER)
    except NotComparable:
        return None


def read_folders(folders: Iterable[Path | None]) -> tuple[Stored, ...]:
    """Read every baseline of some folders, in their order, by name within each.

    Raises:
        CheckFailed: ``baseline.broken``: a file is no baseline.
    """
    return tuple(
        Stored(path, read_file(path))
        for folder in folders
        if folder is not None
        for path in sorted(folder.glob("*.json"))
    )


def read_file(path: Path) -> Baseline:
    """Read one baseline.

    Raises:
        CheckFailed: ``baseline.broken``.
    """
    try:
        body = json.loads(path.read_text("utf-8"))
        if not isinstance(body, dict):
            raise ValueError("no JSON object")
        return Baseline.from_json(body)
    except (OSError, ValueError) as error:
        raise CheckFailed(
            "baseline.broken",
            expected="a baseline as `harness baseline record` writes it",
            found=str(error),
            where=str(path),
            next="take the file away, or put back what was written",
        ) from error


def find(key: Key, stored: Sequence[Stored]) -> Found:
    """Return what a floor of this key may rest on; of several, the first.

    Args:
        key: Of the engine that runs.
        stored: What is recorded, the strongest folder first.
    """
    if key.unknown:
        return Found(None, f"not known here: {', '.join(key.unknown)}")
    problems: list[Refused] = []
    for each in stored:
        if not differences(key, each.baseline.key):
            if each.baseline.usable:
                return Found(each.baseline)
            problems += each.baseline.problems
    if problems:
        failure = problems[0].failure
        return Found(None, f"recorded, but no baseline: {failure.id}, {failure.found}")
    return Found(None, _nearest(key, stored))


def _nearest(key: Key, stored: Sequence[Stored]) -> str:
    """Say by what the nearest baseline differs, so that a user sees what to record."""
    apart = [differences(key, each.baseline.key) for each in stored if each.baseline.usable]
    if not apart:
        return "nothing is recorded that could be a floor"
    nearest = min(apart, key=lambda each: len(each))
    return "the nearest baseline differs in " + "; ".join(map(str, nearest))


def write(folder: Path, baseline: Baseline, *, replace: bool = False) -> Path:
    """Write a baseline into its key's file; return the path.

    Args:
        folder: Made where it is missing.
        baseline: One that a floor may rest on.
        replace: Put it in the place of one that is there.

    Raises:
        Refused: As :func:`harness.baseline.admit`, ``baseline.exists`` or
            ``baseline.unwritable``.
    """
    target = folder / admit(baseline).key.file_name
    text = json.dumps(baseline.to_json(), indent=1) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".baseline-")
        fresh = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            fresh.chmod(0o644)
            if replace:
                fresh.replace(target)
            else:
                target.hardlink_to(fresh)  # unlike a rename, it fails where there is a file
        finally:
            fresh.unlink(missing_ok=True)
    except FileExistsError as error:
        raise Refused(
            "baseline.exists",
            expected="no baseline of this key",
            found="one is there",
            where=str(target),
            next="take it away, name another folder, or harness baseline record --replace",
        ) from error
    except OSError as error:
        raise _unwritable(folder, error) from error
    return target


def _unwritable(folder: Path, error: OSError) -> Refused:
    return Refused(
        "baseline.unwritable",
        expected="a folder that can be written",
        found=error.strerror or str(error),
        where=str(folder),
        next="choose another folder",
    )
