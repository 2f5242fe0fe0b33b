"""What a text may say, each kind of value read by one function.

That a path exists is checked where it is used: a setting for the box must not stop the unit
tests on a laptop.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class BadValue(Exception):
    """A text that does not say a value; the message says what would."""


def read_text(text: str, base: Path) -> str:
    """Read any text but an empty one."""
    if not text.strip():
        raise BadValue("a value")
    return text.strip()


def read_path(text: str, base: Path) -> Path:
    """Read a path; a relative one starts in ``base``."""
    return base / Path(read_text(text, base)).expanduser()


def read_program(text: str, base: Path) -> Path:
    """Read a path, or find a program by its name on ``PATH``."""
    if "/" in text:
        return read_path(text, base)
    found = shutil.which(read_text(text, base))
    if found is None:
        raise BadValue("a path, or the name of a program on PATH")
    return Path(found)


def read_whole(text: str, base: Path) -> int:
    """Read a whole number of 1 or more."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise BadValue("a whole number of 1 or more")
    return int(text)


def read_seconds(text: str, base: Path) -> float:
    """Read a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadValue("a number of seconds above 0")
    return value


def read_share(text: str, base: Path) -> float:
    """Read a share above 0 and at most 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise BadValue("a share above 0 and at most 1")
    return value


def read_lease(text: str, base: Path) -> str | None:
    """Read the name of a lease; ``auto`` for a plain yes, None for no."""
    word = text.strip()
    if word.lower() in _NO:
        return None
    if word.lower() in _YES:
        return "auto"
    if not word or "/" in word:
        raise BadValue("the name of a lease, auto for the only one, or no")
    return word


def read_flag(text: str, base: Path) -> bool:
    """Read yes or no."""
    word = text.strip().lower()
    if word not in (*_YES, *_NO):
        raise BadValue("yes or no")
    return word in _YES
