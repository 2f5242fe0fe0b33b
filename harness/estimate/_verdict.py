"""Whether an estimate fits one kind of card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.estimate._cards import Card
from harness.estimate._terms import Term
from harness.estimate._units import gib


@dataclass(frozen=True)
class Verdict:
    """Whether an estimate fits a card.

    Attributes:
        card: The card.
        asked: Bytes that vLLM may take, and wants free: utilisation x total.
        pool: What is left of these for the cache; negative where even the rest is too much.
        tokens: Tokens that the cache then holds, over all requests.
        reasons: Why it does not fit; empty when it does.
        largest: The largest term.
    """

    card: Card
    asked: int
    pool: int
    tokens: int
    reasons: tuple[str, ...]
    largest: Term

    @property
    def fits(self) -> bool:
        """Whether the engine starts and serves the longest request."""
        return not self.reasons

    def explain(self) -> str:
        """Return the verdict in one line."""
        if self.fits:
            return f"{self.card.title}: fits, {self.tokens:,} tokens of cache"
        return (
            f"{self.card.title}: does not fit: {'; '.join(self.reasons)}; largest: "
            f"{self.largest.name}, {gib(self.largest.bytes)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a JSON object; sizes in bytes."""
        return {
            "card": self.card.name,
            "memory": self.card.memory,
            "memory_source": self.card.source,
            "fits": self.fits,
            "asked": self.asked,
            "cache_bytes": self.pool,
            "cache_tokens": self.tokens,
            "reasons": list(self.reasons),
            "largest": self.largest.name,
        }
