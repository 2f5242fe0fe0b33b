"""The surfaces that travel with the package, one file a release, and those of the user.

``HARNESS_SURFACES`` names a folder of the user's own; a release that is in both is the user's.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from harness.data import data_path
from harness.errors import HarnessError, NotComparable, UsageError
from harness.seams.surface import Surface

_FOLDER = "surfaces"
ADDED = "HARNESS_SURFACES"
"""Environment variable that names a folder with further surfaces."""


def releases() -> tuple[str, ...]:
    """Return the recorded releases, oldest first."""
    return tuple(sorted({*_packed(), *added()}, key=_order))


def added() -> tuple[str, ...]:
    """Return the releases in the user's own folder."""
    folder = os.environ.get(ADDED)
    return tuple(file.stem for file in Path(folder).glob("*.json")) if folder else ()


def _packed() -> tuple[str, ...]:
    try:
        folder = data_path(_FOLDER)
    except HarnessError:
        return ()
    return tuple(file.stem for file in folder.glob("*.json"))


@cache
def recorded(release: str) -> Surface:
    """Return the recorded surface of a release, such as ``0.16.0``.

    Raises:
        NotComparable: ``seams.no-record``: that release was never read.
        UsageError: ``seams.broken-surface``: its file is damaged.
    """
    if release not in releases():
        known = releases()
        raise NotComparable(
            "seams.no-record",
            expected=f"a recorded release: {known[0]} to {known[-1]}" if known else "any record",
            found=release,
            where=_FOLDER,
            next="give its wheel, or record it: harness surface record WHEEL --out FILE",
        )
    own = release in added()
    path = (
        Path(os.environ[ADDED]) / f"{release}.json"
        if own
        else data_path(f"{_FOLDER}/{release}.json")
    )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "seams.broken-surface",
            expected="a recorded surface, as text",
            found=f"{type(error).__name__}: {error}",
            where=str(path),
            next="record it again: harness surface record SOURCE --out FILE",
        ) from error
    return Surface.loads(text, where=str(path))


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))
