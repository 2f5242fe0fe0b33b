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
_PLAIN = re.compile(r"\d+(\.\d+)*")
_SPELLING = re.compile(r"(?:vllm==)?v?(\d+(?:\.\d+)*)(?:\+[\w.]+)?")
ADDED = "HARNESS_SURFACES"
"""Environment variable that names a folder with further surfaces."""


def releases() -> tuple[str, ...]:
    """Return the recorded releases, oldest first."""
    return tuple(sorted({*_packed(), *added()}, key=_order))


def added() -> tuple[str, ...]:
    """Return the releases in the user's own folder."""
    folder = os.environ.get(ADDED)
    return tuple(file.stem for file in Path(folder).glob("*.json")) if folder else ()


def spelled(name: str) -> str | None:
    """Return the recorded release that a name means; None where none is meant.

    ``0.16``, ``v0.16.0``, ``vllm==0.16.0`` and ``0.16.0+cpu`` are one release: a surface is read
    from files that every build has.
    """
    if name in releases():
        return name
    found = _SPELLING.fullmatch(name)
    if found is None:
        return None
    return next((one for one in releases() if _number(one) == _number(found[1])), None)


def _packed() -> tuple[str, ...]:
    try:
        folder = data_path(_FOLDER)
    except HarnessError:
        return ()
    return tuple(file.stem for file in folder.glob("*.json"))


@cache
def recorded(release: str) -> Surface:
    """Return the recorded surface of a release, such as ``0.16.0``, in any spelling.

    Raises:
        NotComparable: ``seams.no-record``: that release was never read.
        UsageError: ``seams.broken-surface``: its file is damaged.
    """
    known = releases()
    wanted, release = release, spelled(release) or ""
    if not release:
        raise NotComparable(
            "seams.no-record",
            expected=f"a recorded release: {known[0]} to {known[-1]}" if known else "any record",
            found=wanted,
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


def _number(release: str) -> str | None:
    """Return a plain release without the zeros at its end; None for others, such as 0.33.0rc1."""
    return re.sub(r"(\.0+)+$", "", release) if _PLAIN.fullmatch(release) else None


def _order(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))
