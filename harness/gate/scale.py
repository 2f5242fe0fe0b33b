"""The words of an answer: verdicts from good to bad, rungs from cheap to dear, how a rung ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from harness.errors import ExitCode


class Verdict(StrEnum):
    """What the gate says of a candidate, a generation or a consumer."""

    OK = "ok"
    """Everything relied on is there and does what it did."""
    OK_WITH_PATCHES = "ok-with-patches"
    """The same, with the patches that are needed there; each of them fits."""
    REGRESSED = "regressed"
    """It worked on the known good release, and cannot work on the candidate."""
    UNKNOWN = "unknown"
    """Code of a shape that the gate does not know: only a higher rung can tell."""
    NOT_COMPARABLE = "not-comparable"
    """There is nothing to hold the candidate against: it did not work before, or never ran."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of a command that ends with it."""
        return {
            Verdict.REGRESSED: ExitCode.CHECK_FAILED,
            Verdict.UNKNOWN: ExitCode.UNKNOWN,
            Verdict.NOT_COMPARABLE: ExitCode.UNKNOWN,
        }.get(self, ExitCode.OK)

    @property
    def green(self) -> bool:
        """Whether it allows the upgrade, as far as its rung can tell."""
        return self in (Verdict.OK, Verdict.OK_WITH_PATCHES)


_WORST_FIRST = (Verdict.REGRESSED, Verdict.UNKNOWN, Verdict.OK_WITH_PATCHES, Verdict.OK)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict; ``not-comparable`` only where there is no other.

    A generation that neither release has says nothing about the other generation.
    """
    found = set(verdicts)
    return next((one for one in _WORST_FIRST if one in found), Verdict.NOT_COMPARABLE)


class Rung(StrEnum):
    """A step of the gate; each costs more and proves more than the one before."""

    STATIC = "static"
    """The candidate's files alone."""
    MOCK = "mock"
    """The patches' unit suite, on a mock made from the candidate's surface."""
    CPU = "cpu"
    """The engine suite on a real engine without a GPU."""
    GPU = "gpu"
    """``pytest -m gpu`` with a slice of the model."""
    FULL = "full"
    """``pytest -m gpu`` with the whole model."""


class RungStatus(StrEnum):
    """How a rung ended."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It ran and cannot tell."""
    SKIPPED = "skipped"
    """It did not run; the reason says why."""


@dataclass(frozen=True)
class RungResult:
    """One rung of one run of the gate.

    Attributes:
        rung: Which.
        status: How it ended.
        reason: Why it was skipped, or what it says, in a sentence.
        seconds: Wall time; 0 where it did not run.
        figures: What it measured (numbers, texts); becomes part of the evidence.
        verdicts: What it says of single generations, by name; empty: the same of all.
    """

    rung: Rung
    status: RungStatus
    reason: str
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    verdicts: Mapping[str, Verdict] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def proves(self) -> bool:
        """Whether its figures are evidence of a pair."""
        return self.ran and "proofs" in self.figures

    @property
    def ran(self) -> bool:
        """Whether it was climbed."""
        return self.status is not RungStatus.SKIPPED

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "rung": self.rung,
            "status": self.status,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "figures": dict(self.figures),
            "verdicts": dict(self.verdicts),
        }
