"""The gate: may vLLM be upgraded, answered from the candidate's files and proved rung by rung."""

from __future__ import annotations

from harness.gate.scale import Rung, RungResult, RungStatus, Verdict, worst
from harness.gate.verdict import (
    ConsumerVerdict,
    GateResult,
    GenerationVerdict,
    PatchVerdicts,
    ProbeVerdict,
    SeamStatus,
    SeamVerdict,
    Side,
)

__all__ = [
    "ConsumerVerdict",
    "GateResult",
    "GenerationVerdict",
    "PatchVerdicts",
    "ProbeVerdict",
    "Rung",
    "RungResult",
    "RungStatus",
    "SeamStatus",
    "SeamVerdict",
    "Side",
    "Verdict",
    "worst",
]
