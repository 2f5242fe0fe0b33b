"""Parity: are these rows the reference's rows, and if not, whose are they?

An extraction that crashes costs a load; one that writes the neighbouring layer or the
neighbour's prompt costs a training run. So a comparison here never ends at a number: it
also names what the wrong rows and columns are equal to.

Two measures, both in float32 on plain arrays:

* per depth, ``max|got - reference| / max|reference|``, held to ``Limits.max_rel_err``;
* per row, ``norm(got - reference) / norm(reference)``; a row over ``Limits.row_err`` is wrong.

A mixture-of-experts layer is not continuous. Where the last chosen and the first refused
expert are nearly level in the reference, another summation order may choose the other one,
which is no fault of the capture. A prompt with such a near tie is **set aside**: it is
neither passed nor failed, and the report names the place. Attention is causal, so the rows
before the first near tie are still held to the limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import CheckFailed
from harness.oracles._diagnosis import describe_column, describe_rows
from harness.oracles._parity_report import (
    FAILED,
    PASSED,
    SET_ASIDE,
    NearTie,
    ParityReport,
    ParitySummary,
    summarise,
)

__all__ = [
    "FAILED",
    "PASSED",
    "SET_ASIDE",
    "Limits",
    "NearTie",
    "ParityReport",
    "ParitySummary",
    "compare",
    "summarise",
]

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Limits:
    """What still counts as equal.

    Attributes:
        max_rel_err: Largest ``max|a-b| / max|b|`` of one depth.
        row_err: Largest relative norm error of one row.
        routing_gap: A gap between chosen and refused expert below this is a near tie.
    """

    max_rel_err: float = 1e-5
    row_err: float = 1e-3
    routing_gap: float = 1e-5


def compare(
    got: Floats,
    reference: Floats,
    depths: Sequence[int],
    routing_gap: Floats | None,
    *,
    prompt: str = "prompt",
    others: Mapping[str, Floats] | None = None,
    limits: Limits | None = None,
) -> ParityReport:
    """Compare the captured columns of one prompt with the reference forward.

    Args:
        got: Captured hidden states, ``[tokens, columns, hidden]``.
        reference: Reference of the same prompt, ``[tokens, L + 1, hidden]``; column k = depth k.
        depths: For each column of ``got``, the depth that it should be.
        routing_gap: ``[tokens, moe_layers]`` gaps of the reference, or None for a model
            without experts.
        prompt: Name used in the report.
        others: References of other prompts in the run, by name: rows that belong to one of
            them are named.
        limits: What counts as equal; by default 1e-5, 1e-3 and 1e-5.

    Returns:
        The report. Wrong shapes and non-finite values in ``got`` are faults in it.

    Raises:
        CheckFailed: The reference itself cannot serve (not finite, or a depth outside it).
    """
    limits = limits or Limits()
    depths = tuple(int(depth) for depth in depths)
    _check_reference(reference, depths, routing_gap, prompt)
    tokens = reference.shape[0]
    tie = _near_tie(routing_gap, limits.routing_gap)
    held = tokens if tie is None else tie.token
    expected_shape = (tokens, len(depths), reference.shape[2])
    if got.shape != expected_shape:
        return ParityReport(
            prompt=prompt,
            tokens=tokens,
            depths=depths,
            rel_err=(float("inf"),) * len(depths),
            wrong_rows=tokens,
            wrong_by_depth=(tokens,) * len(depths),
            near_tie=tie,
            held_rows=held,
            faults=(
                f"shape: expected {expected_shape} (tokens, depths, hidden), found {got.shape}",
            ),
        )

    got32 = got.astype(np.float32, copy=False)
    wanted = reference[:, list(depths)].astype(np.float32, copy=False)
    rel_err = tuple(_relative_max(got32[:, c], wanted[:, c]) for c in range(len(depths)))
    wrong = _row_errors(got32, wanted) > limits.row_err  # [tokens, columns]

    faults: list[str] = []
    for column, depth in enumerate(depths):
        bad_rows = np.flatnonzero(wrong[:held, column])
        error = _relative_max(got32[:held, column], wanted[:held, column])
        if not bad_rows.size and error <= limits.max_rel_err:
            continue
        fault = (
            f"depth {depth}: {bad_rows.size} of {held} rows wrong, "
            f"relative error {error:.2e} (limit {limits.max_rel_err:.0e})"
        )
        whole = describe_column(got32[:held, column], reference[:held], depth, limits.row_err)
        if whole:
            fault += f"; {whole}"
        elif bad_rows.size:
            rows = describe_rows(
                got32[:, column], bad_rows, prompt, reference, others or {}, depth, limits.row_err
            )
            fault += f"; {rows}"
        faults.append(fault)

    return ParityReport(
        prompt=prompt,
        tokens=tokens,
        depths=depths,
        rel_err=rel_err,
        wrong_rows=int(wrong.any(axis=1).sum()),
        wrong_by_depth=tuple(int(n) for n in wrong.sum(axis=0)),
        near_tie=tie,
        held_rows=held,
        faults=tuple(faults),
    )


def _check_reference(
    reference: Floats, depths: tuple[int, ...], routing_gap: Floats | None, prompt: str
) -> None:
    def refuse(id: str, expected: str, found: str) -> CheckFailed:
        return CheckFailed(
            id, expected=expected, found=found, where=prompt, next="compute the reference anew"
        )

    if reference.ndim != 3:
        raise refuse(
            "parity.reference-shape", "[tokens, L + 1, hidden]", f"shape {reference.shape}"
        )
    outside = [depth for depth in depths if not 0 <= depth < reference.shape[1]]
    if outside:
        raise refuse(
            "parity.depth-outside-reference",
            f"depths 0 to {reference.shape[1] - 1}",
            f"depths {outside}",
        )
    if not np.isfinite(reference).all():
        raise refuse("parity.reference-not-finite", "finite values", "NaN or infinity")
    if routing_gap is not None and routing_gap.shape[0] != reference.shape[0]:
        raise refuse(
            "parity.routing-gap-shape",
            f"{reference.shape[0]} rows of routing gaps",
            f"shape {routing_gap.shape}",
        )


def _near_tie(routing_gap: Floats | None, limit: float) -> NearTie | None:
    if routing_gap is None or routing_gap.size == 0:
        return None
    # A gap that is not a number cannot vouch for the routing: it counts as a tie.
    narrow = ~(routing_gap >= limit)
    rows = narrow.any(axis=1)
    if not rows.any():
        return None
    token = int(np.argmax(rows))
    layer = int(np.argmax(narrow[token]))
    return NearTie(token, layer, float(routing_gap[token, layer]), int(rows.sum()))


def _relative_max(got: Floats, wanted: Floats) -> float:
    """``max|got - wanted| / max|wanted|`` of one column; infinite for non-finite values."""
    if wanted.size == 0:
        return 0.0
    if not np.isfinite(got).all():
        return float("inf")
    scale = float(np.abs(wanted).max())
    difference = float(np.abs(got - wanted).max())
    return difference / scale if scale else (0.0 if difference == 0.0 else float("inf"))


def _row_errors(got: Floats, wanted: Floats) -> Floats:
    """Relative norm error of every row and column, ``[tokens, columns]``; never NaN."""
    # float64: the norm of a wide float32 row must not add an error of its own.
    norm = np.linalg.norm(wanted.astype(np.float64), axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.linalg.norm(got.astype(np.float64) - wanted, axis=-1)
    error = difference / np.maximum(norm, np.finfo(np.float64).tiny)
    return np.where(np.isfinite(error), error, np.inf)
