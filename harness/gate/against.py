"""What evidence holds against a release: runs of it that failed, or could not be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from harness.gate.evidence import PASSED, Evidence


@dataclass(frozen=True)
class Against:
    """One capture that did not pass on one pair.

    Attributes:
        file: The evidence's file.
        capture: ``patched``, ``native`` or ``speculators``.
        rung: The rung that was climbed.
        date: Day, ISO 8601, UTC.
        device: ``cpu`` or ``cuda``.
        hardware: The device in words.
        torch: Release, or empty.
        outcome: ``failed`` or ``cannot-run``.
        reason: Why.
    """

    file: str
    capture: str
    rung: str
    date: str
    device: str
    hardware: str
    torch: str
    outcome: str
    reason: str

    @property
    def words(self) -> str:
        """The run in a sentence."""
        word = "failed" if self.outcome == "failed" else "could not run"
        torch = f", torch {self.torch}" if self.torch else ""
        return (
            f"evidence: {word} on rung {self.rung} ({self.hardware}{torch}, {self.date}): "
            f"{self.reason}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return dict(vars(self))


def against(evidence: Iterable[Evidence], release: Version | None) -> tuple[Against, ...]:
    """Return what did not pass of a release; of runs of one pair on one rung the newest counts.

    Args:
        evidence: What is known, as ``read_all`` sorts it.
        release: The candidate's; None where its files tell none.
    """
    newest: dict[tuple[str, ...], Against | None] = {}
    for one in evidence:
        pair = one.pair
        if release is None or pair.release != release:
            continue
        for proof in one.proofs:
            said = Against(
                one.file,
                proof.capture,
                str(one.rung),
                one.date,
                pair.device,
                pair.hardware,
                pair.torch,
                proof.outcome,
                proof.reason,
            )
            key = (proof.capture, str(one.rung), pair.hardware, pair.torch, pair.transformers)
            newest[key] = None if proof.outcome == PASSED else said
    return tuple(one for one in newest.values() if one is not None)
