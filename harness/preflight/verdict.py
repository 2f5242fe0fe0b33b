"""What a check concludes, and what all of them amount to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What can be said of a box, or of one device.

    Attributes:
        CLEAN: An engine can be started.
        UNKNOWN: It cannot be said; nothing is started on a guess.
        DIRTY: An engine would fail, be slowed down, or disturb somebody.
    """

    CLEAN = "CLEAN"
    UNKNOWN = "UNKNOWN"
    DIRTY = "DIRTY"


_WEIGHT = {Verdict.CLEAN: 0, Verdict.UNKNOWN: 1, Verdict.DIRTY: 2}


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: Id of the check, such as ``memory.used``.
        verdict: What follows from it; a finding with CLEAN is worth knowing and stops nothing.
        found: What is so, in one sentence.
        expected: What should be so.
        next: The next command or step; empty where there is nothing to do.
        device: NVML's index; None where it concerns the machine.
    """

    check: str
    verdict: Verdict
    found: str
    expected: str = ""
    next: str = ""
    device: int | None = None

    def __str__(self) -> str:
        where = "" if self.device is None else f"GPU {self.device}: "
        return f"{self.verdict} {self.check}: {where}{self.found}"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a flat JSON object."""
        return asdict(self)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict that stands: DIRTY before UNKNOWN before CLEAN."""
    return max(verdicts, key=_WEIGHT.__getitem__, default=Verdict.CLEAN)
