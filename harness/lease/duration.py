"""Spans of time as people write them: ``4h``, ``90m``, ``1h30m``; and as they read them."""

from __future__ import annotations

import re

from harness.errors import UsageError

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_MOST_S = 30 * 86400


def parse(text: str, where: str = "--for") -> float:
    """Return the seconds of a span such as ``4h`` or ``1h30m``.

    Raises:
        UsageError: ``lease.bad-duration``: unreadable, nothing, or more than 30 days.
    """
    compact = text.replace(" ", "").lower()
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(compact))
    if _PART.sub("", compact) or not 0 < seconds <= _MOST_S:
        raise UsageError(
            "lease.bad-duration",
            expected="a span of at most 30d, such as 4h, 90m or 1h30m",
            found=repr(text),
            where=where,
            next="give a number with its unit: d, h, m or s",
        )
    return seconds


def show(seconds: float) -> str:
    """Return a span in one or two units: ``42 s``, ``12 min``, ``3 h 05 min``, ``2 d 4 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24} h"
