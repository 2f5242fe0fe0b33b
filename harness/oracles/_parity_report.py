"""What a parity check found, as facts that explain themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.oracles.finding import Finding

PASSED = "passed"
FAILED = "failed"
SET_ASIDE = "set aside"


@dataclass(frozen=True)
class NearTie:
    """The first token of a prompt at which an expert was chosen by a hair.

    Attributes:
        token: Row of the prompt, 0-based.
        moe_layer: Which mixture-of-experts layer, counted among those layers only, 0-based.
        gap: Selection score of the last chosen expert minus that of the first refused one.
        tokens: How many tokens of the prompt have a near tie in any layer.
    """

    token: int
    moe_layer: int
    gap: float
    tokens: int


@dataclass(frozen=True)
class ParityReport:
    """Outcome of comparing one prompt with its reference.

    Attributes:
        prompt: Name of the prompt, as the caller gave it.
        tokens: Rows of the reference.
        depths: Depth that each column claims to be.
        rel_err: Per column ``max|a-b| / max|b|``, over all rows; infinite when not comparable.
        wrong_rows: Number of rows (tokens) wrong at one depth or more.
        wrong_by_depth: Per column, the number of wrong rows.
        near_tie: Set when the prompt is set aside.
        held_rows: Rows that were held to the limits: all, or those before the near tie.
        faults: One sentence per fault among the held rows; empty when there is none.
    """

    prompt: str
    tokens: int
    depths: tuple[int, ...]
    rel_err: tuple[float, ...]
    wrong_rows: int
    wrong_by_depth: tuple[int, ...]
    near_tie: NearTie | None
    held_rows: int
    faults: tuple[str, ...]

    @property
    def max_rel_err(self) -> float:
        """Largest relative error over the depths, 0.0 without any column."""
        return max(self.rel_err, default=0.0)

    @property
    def set_aside(self) -> bool:
        """Whether a near tie keeps this prompt from being judged in full."""
        return self.near_tie is not None

    @property
    def status(self) -> str:
        """``failed``, ``set aside`` or ``passed``, in this order of weight."""
        if self.faults:
            return FAILED
        return SET_ASIDE if self.set_aside else PASSED

    @property
    def ok(self) -> bool:
        """True only for a prompt that was held to the limits in full and met them."""
        return self.status == PASSED

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The faults as findings of the check ``parity``."""
        return tuple(
            Finding(id=self.prompt, check="parity", expected="the reference's rows", found=fault)
            for fault in self.faults
        )

    def explain(self) -> str:
        """Say in a few lines what was compared, what failed and what was left out."""
        lines = [
            f"{self.prompt}: {self.status}; {self.tokens} tokens, "
            f"{len(self.depths)} depths, max relative error {self.max_rel_err:.2e}, "
            f"{self.wrong_rows} wrong rows"
        ]
        lines += [f"  {fault}" for fault in self.faults]
        if self.near_tie is not None:
            tie = self.near_tie
            lines.append(
                f"  set aside: from token {tie.token} on, expert routing is a near tie "
                f"(gap {tie.gap:.1e} in MoE layer {tie.moe_layer}; {tie.tokens} such tokens); "
                f"{self.held_rows} rows before it were held to the limits"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values, with the derived fields."""
        return {**asdict(self), "status": self.status, "max_rel_err": self.max_rel_err}


@dataclass(frozen=True)
class ParitySummary:
    """Counts over many reports, so that prompts set aside cannot go unnoticed.

    Attributes:
        passed: Prompts held in full and right.
        failed: Names of the prompts with a fault.
        set_aside: Names of the prompts with a near tie and no fault before it.
        max_rel_err: Largest relative error among the prompts that passed.
        wrong_rows: Wrong rows among the prompts that were not set aside.
    """

    passed: int
    failed: tuple[str, ...]
    set_aside: tuple[str, ...]
    max_rel_err: float
    wrong_rows: int

    @property
    def share_set_aside(self) -> float:
        """Prompts set aside over all prompts, 0.0 when there are none."""
        total = self.passed + len(self.failed) + len(self.set_aside)
        return len(self.set_aside) / total if total else 0.0


def summarise(reports: Sequence[ParityReport]) -> ParitySummary:
    """Count reports by status; names stay in the order given."""
    return ParitySummary(
        passed=sum(r.status == PASSED for r in reports),
        failed=tuple(r.prompt for r in reports if r.status == FAILED),
        set_aside=tuple(r.prompt for r in reports if r.status == SET_ASIDE),
        max_rel_err=max((r.max_rel_err for r in reports if r.status == PASSED), default=0.0),
        wrong_rows=sum(r.wrong_rows for r in reports if r.status != SET_ASIDE),
    )
