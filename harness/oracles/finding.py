"""One thing an oracle found wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """A fault of content, as a fact.

    Attributes:
        id: The sample (or canary prompt) that it concerns.
        check: Short name of the check, such as ``rows``, ``finite``, ``witness``.
        expected: What the check wanted.
        found: What was there.
    """

    id: str
    check: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.id}: {self.check}: expected {self.expected}, found {self.found}"

    def to_json(self) -> dict[str, str]:
        """Return the finding as a flat JSON object."""
        return asdict(self)
