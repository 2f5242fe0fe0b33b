"""Short words for the inventory's tables."""

from __future__ import annotations

from harness.seams.seam import Call, Consumer, Kind, Seam, Use

V03 = Consumer.SPECULATORS_0_3
V04 = Consumer.SPECULATORS_0_4
NATIVE = Consumer.NATIVE
PATCHED = Consumer.PATCHED
PATCHES = Consumer.PATCHES
CONNECTORS = Consumer.HS_CONNECTORS
TESTS = Consumer.MOCK_ENGINE


def call(*keywords: str, positional: int = 0) -> Call:
    """A call with keywords, after so many arguments by place."""
    return Call(positional, keywords)


def names(prefix: str, path: str, kind: Kind, members: str, *uses: Use) -> tuple[Seam, ...]:
    """One seam for each member of a class or module that is only read by name.

    Args:
        prefix: First part of each id.
        path: ``module:Class``, or ``module`` for the names of a module.
        kind: Kind of every member.
        members: Their names, parted by spaces.
        uses: Who reads them.
    """
    mark = "." if ":" in path else ":"
    return tuple(
        Seam(f"{prefix}.{member}", kind, (f"{path}{mark}{member}",), uses)
        for member in members.split()
    )
