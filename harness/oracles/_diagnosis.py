"""Whose rows are these? Names the likely origin of wrong columns and rows.

Pure numpy; every answer is a sentence for a report, or an empty string when nothing in
reach is equal to what was found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]

# More rows than these are counted but not looked up: the pattern shows in the first ones.
_ROWS_EXAMINED = 64
_ROWS_NAMED = 3


def describe_column(column: Floats, reference: Floats, depth: int, tolerance: float) -> str:
    """Say which depth of the reference a whole column is equal to.

    Args:
        column: What was found, ``[tokens, hidden]``.
        reference: All depths of the prompt, ``[tokens, L + 1, hidden]``.
        depth: The depth that the column should be.
        tolerance: Relative norm error of the whole column up to which it is equal.

    Returns:
        A sentence, or an empty string when no other depth fits.
    """
    if column.size == 0 or not np.isfinite(column).all():
        return ""
    wide = column.astype(np.float64)
    errors = [
        _norm_error(wide, reference[:, other].astype(np.float64))
        for other in range(reference.shape[1])
    ]
    if errors[depth] <= tolerance:
        return ""
    nearest = int(np.argmin(errors))
    if errors[nearest] <= tolerance:
        return f"the column is depth {nearest} of the reference (shifted by {nearest - depth:+d})"
    for other in sorted(range(reference.shape[1]), key=lambda k: abs(k - depth)):
        if _is_rescaled(wide, reference[:, other].astype(np.float64)):
            return (
                f"the column is depth {other} times one factor a row and one a channel: "
                "a norm was applied to it"
            )
    return ""


def describe_rows(
    column: Floats,
    bad_rows: Sequence[int] | npt.NDArray[np.intp],
    prompt: str,
    reference: Floats,
    others: Mapping[str, Floats],
    depth: int,
    tolerance: float,
) -> str:
    """Say which rows, of this prompt or of another, the wrong rows are equal to.

    Args:
        column: What was found at one depth, ``[tokens, hidden]``.
        bad_rows: Rows of ``column`` that are wrong.
        prompt: Name of this prompt.
        reference: All depths of this prompt, ``[tokens, L + 1, hidden]``.
        others: The same of other prompts, by name.
        depth: The depth that the column should be.
        tolerance: Relative norm error up to which two rows are equal.

    Returns:
        A sentence; it also says when the rows are not finite, zero, or nobody's.
    """
    examined = [int(row) for row in bad_rows[:_ROWS_EXAMINED]]
    sources = {prompt: reference, **{k: v for k, v in others.items() if k != prompt}}
    origin = {row: _origin(column[row], sources, row, depth, tolerance) for row in examined}

    # A whole prompt under another's name: say that once, not row by row.
    whole = Counter(o[0] for row, o in origin.items() if o and o[1] == row and o[0] != prompt)
    for name, count in whole.most_common(1):
        if count == len(examined) > 1:
            return f"these rows are prompt {name!r}, row for row"

    named: list[str] = []
    for row in examined[:_ROWS_NAMED]:
        found = origin[row]
        if found:
            whose = "this prompt" if found[0] == prompt else f"prompt {found[0]!r}"
            named.append(f"row {row} is row {found[1]} of {whose}")
        elif not np.isfinite(column[row]).all():
            named.append(f"row {row} is not finite")
        elif not column[row].any():
            named.append(f"row {row} is zero")
        else:
            named.append(f"row {row} is no row of this prompt or of {len(sources) - 1} others")
    left = len(bad_rows) - len(named)
    return ", ".join(named) + (f", and {left} more" if left else "")


def _origin(
    row: Floats, sources: Mapping[str, Floats], index: int, depth: int, tolerance: float
) -> tuple[str, int] | None:
    """Nearest source row at this depth, as (prompt, row), if it is near enough."""
    if not np.isfinite(row).all() or not row.any():
        return None
    best: tuple[float, int, str, int] | None = None
    for name, source in sources.items():
        candidates = source[:, depth].astype(np.float64)
        if candidates.shape[1:] != row.shape:
            continue
        norms = np.maximum(np.linalg.norm(candidates, axis=1), np.finfo(np.float64).tiny)
        errors = np.linalg.norm(candidates - row, axis=1) / norms
        for match in np.flatnonzero(errors <= tolerance):
            # Identical rows exist (same token, same prefix): prefer the same position.
            key = (float(errors[match]), int(match != index), name, int(match))
            if best is None or (key[1], key[0]) < (best[1], best[0]):
                best = key
    return None if best is None else (best[2], best[3])


def _norm_error(got: Floats, wanted: Floats) -> float:
    norm = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(got - wanted)) / norm if norm else float("inf")


def _is_rescaled(got: Floats, wanted: Floats) -> bool:
    """Whether ``got = a[row] * wanted * w[channel]``: what an RMS norm does to a column.

    True says nothing for a single row (any row is a rescaled one), so it needs several.
    Channels near zero carry no ratio and are left out.
    """
    if got.shape[0] < 3 or got.shape[1] < 8:
        return False
    usable = np.abs(wanted).min(axis=0) > 1e-3 * np.abs(wanted).max()
    if usable.sum() < 8:
        usable = np.abs(wanted).min(axis=0) > 1e-6 * np.abs(wanted).max()
    if usable.sum() < 8:
        return False
    ratio = got[:, usable] / wanted[:, usable]
    singular = np.linalg.svd(ratio, compute_uv=False)
    return bool(singular[1] <= 1e-3 * singular[0])
