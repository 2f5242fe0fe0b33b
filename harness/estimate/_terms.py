"""One line of an estimate: how many bytes, where the figure comes from, how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Confidence = Literal["exact", "measured", "rule of thumb"]


@dataclass(frozen=True)
class Term:
    """One part of what an engine takes.

    Attributes:
        name: What takes it.
        bytes: How much, in bytes, on one device or on the host.
        source: Where the figure comes from.
        confidence: ``exact`` (arithmetic on known sizes), ``measured`` (seen on one machine) or
            ``rule of thumb`` (scaled from a measurement, or bounded).
    """

    name: str
    bytes: int
    source: str
    confidence: Confidence

    def to_json(self) -> dict[str, Any]:
        """Return the term as a flat JSON object."""
        return asdict(self)


def total(terms: Iterable[Term]) -> int:
    """Return the bytes of several terms together."""
    return sum(term.bytes for term in terms)


def largest(terms: Iterable[Term]) -> Term:
    """Return the term with the most bytes; the first of equals."""
    return max(terms, key=lambda term: term.bytes)
