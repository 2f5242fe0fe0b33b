"""What evidence vouches for: the newest release that is proved, and candidates beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from harness.gate.evidence import PASSED, Evidence, order
from harness.gate.scale import Rung


def newest_proved(
    evidence: Iterable[Evidence], *, capture: str, device: str, rung: Rung = Rung.CPU
) -> Evidence | None:
    """Return the newest release on which a capture passed on a kind of device.

    Args:
        evidence: What is known.
        capture: ``patched`` or ``native``.
        device: ``cpu`` or ``cuda``.
        rung: The lowest rung that counts.
    """
    ladder = list(Rung)
    proved = [
        one
        for one in evidence
        if one.pair.device == device
        and ladder.index(one.rung) >= ladder.index(rung)
        and (proof := one.proof(capture)) is not None
        and proof.outcome == PASSED
    ]
    return max(proved, key=order, default=None)


@dataclass(frozen=True)
class Standing:
    """Whether evidence can vouch for a candidate.

    Attributes:
        comparable: Whether it can be held beside the candidate at all.
        reason: Why not; empty where it can.
    """

    comparable: bool
    reason: str = ""


def standing(one: Evidence, *, candidate: str, device: str) -> Standing:
    """Say whether evidence can be held beside a candidate.

    A candidate that is older than what was proved, or runs on other hardware, was never shown
    to be at least as good: it is not comparable, and never green by this evidence.

    Args:
        one: The evidence.
        candidate: The candidate's release.
        device: Kind of device that it shall run on.
    """
    try:
        release = Version(candidate)
    except InvalidVersion:
        return Standing(False, f"the candidate's release is not known: {candidate!r}")
    if one.pair.device != device:
        return Standing(
            False, f"the evidence is from {one.pair.device} ({one.pair.hardware}), not {device}"
        )
    if release < one.pair.release:
        return Standing(
            False, f"the candidate {candidate} is older than the evidence, of {one.pair.vllm}"
        )
    return Standing(True)
