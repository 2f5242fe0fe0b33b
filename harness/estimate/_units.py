"""Sizes as people write them."""

from __future__ import annotations

import re

from harness.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": 1 << 40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_size(text: str, where: str) -> int:
    """Return the bytes of a text such as ``96GB``, ``94.97 GiB`` or ``1024``.

    Args:
        text: A number over 0 and a unit; GB is 10^9 bytes, GiB 2^30.
        where: The option that it was given to.

    Raises:
        UsageError: ``estimate.bad-size``.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) == 0:
        raise UsageError(
            "estimate.bad-size",
            expected="a size such as 96GB (10^9 bytes each) or 94.97GiB (2^30)",
            found=repr(text),
            where=where,
            next="harness plan --help",
        )
    return int(float(match[1]) * unit)


def gib(count: float) -> str:
    """Return bytes as GiB with two decimals, or as MiB where that says more."""
    if abs(count) >= GIB / 8 or count == 0:
        return f"{count / GIB:.2f} GiB"
    return f"{count / MIB:.2f} MiB"
