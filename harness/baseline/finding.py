"""What a comparison with a baseline came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from harness.errors import CheckFailed, ExitCode, NotComparable


class Status(StrEnum):
    """How a figure stands beside what was recorded."""

    OK = "ok"
    WARN = "warn"
    RED = "red"
    UNCONFIRMED = "unconfirmed"
    NOT_COMPARABLE = "not comparable"


_PASSED = (Status.OK, Status.WARN)
_NEXT = "harness baseline show; docs/baselines.md has the rules"


@dataclass(frozen=True)
class Finding:
    """One figure, or one fact of the engine, beside its baseline.

    Attributes:
        name: The figure, such as ``files_tok_per_s``, or the fact, such as ``attention``.
        status: What it came to.
        expected: What the baseline wants.
        found: What was measured or seen.
        why: One sentence where the status needs one.
        figures: Numbers behind it: ``runs``, ``rerun``, ``median``, ``floor``, ``warn``.
    """

    name: str
    status: Status
    expected: str
    found: str
    why: str = ""
    figures: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def passed(self) -> bool:
        """Whether it was compared and is not too slow; what was not compared has not passed."""
        return self.status in _PASSED

    def require(self) -> None:
        """Go on only where it passed.

        Raises:
            CheckFailed: ``baseline.below-floor`` or ``baseline.other-backend``: it is red.
            NotComparable: ``baseline.unconfirmed`` or ``baseline.not-comparable``.
        """
        if self.passed:
            return
        text = f"{self.found} ({self.why})" if self.why else self.found
        said = {"expected": self.expected, "found": text, "where": self.name, "next": _NEXT}
        if self.status is Status.RED:
            name = "below-floor" if self.figures else "other-backend"
            raise CheckFailed(f"baseline.{name}", **said)
        raise NotComparable(f"baseline.{self.status.replace(' ', '-')}", **said)

    def __str__(self) -> str:
        text = f"{self.name}: {self.status}: expected {self.expected}, found {self.found}"
        return f"{text} ({self.why})" if self.why else text

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {
            "name": self.name,
            "status": str(self.status),
            "expected": self.expected,
            "found": self.found,
            "why": self.why,
            **self.figures,
        }


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """Return the exit code of several findings: 1 for a red one, 4 where one was not compared.

    No finding at all is no success either: 4.
    """
    seen = {finding.status for finding in findings}
    if Status.RED in seen:
        return ExitCode.CHECK_FAILED
    return ExitCode.OK if seen and seen <= set(_PASSED) else ExitCode.UNKNOWN
