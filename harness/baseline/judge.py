"""The floor judge: recorded runs, measured runs, one confirming rerun, a verdict. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from harness.baseline._bounds import LARGEST_SPREAD, LEAST_JUDGED, Bounds, bounds
from harness.baseline._series import Series, series
from harness.baseline.finding import Finding, Status

Rerun = Callable[[], Sequence[float]]


def judge(
    name: str,
    runs: Sequence[float],
    recorded: Series | None,
    *,
    rerun: Rerun | None = None,
    reason: str = "",
) -> Finding:
    """Hold the median of some runs against the floor of the recorded ones.

    Nothing is red after one look: a median below the floor is measured once more by ``rerun``,
    and a second miss is final. A miss that the rerun did not confirm stays visible as a warning.

    Args:
        name: The figure; see :class:`Series`.
        runs: What was measured, 3 runs or more.
        recorded: What was recorded for this very key; None where there is nothing.
        rerun: Measures the same again; called once at most, and only after a miss.
        reason: Why there is nothing recorded.

    Raises:
        UsageError: As :class:`Series`.
    """
    found = series(name, runs)
    if recorded is None:
        return _not_comparable(found, reason or "nothing is recorded for this figure")
    if len(found.runs) < LEAST_JUDGED:
        return _not_comparable(found, _few(found))
    limits = bounds(recorded)
    if found.median >= limits.floor:
        status, why = _above(found, limits)
        return _finding(found, limits, status, why)
    return _below(found, limits, rerun)


def _above(found: Series, limits: Bounds) -> tuple[Status, str]:
    """Say whether a median that is not below the floor is worth a look."""
    if found.median < limits.warn:
        return Status.WARN, "in the band above the floor"
    if found.median > limits.ceiling:
        return Status.WARN, "faster than recorded: record anew, or see whether all work is done"
    if found.spread > LARGEST_SPREAD:
        return Status.WARN, f"the runs differ by {found.spread:.1%}"
    return Status.OK, ""


def _below(found: Series, limits: Bounds, rerun: Rerun | None) -> Finding:
    if rerun is None:
        return _finding(found, limits, Status.UNCONFIRMED, "no rerun was made")
    again = series(found.name, rerun())
    if len(again.runs) < LEAST_JUDGED:
        return _finding(found, limits, Status.UNCONFIRMED, f"the rerun: {_few(again)}", again)
    if again.median < limits.floor:
        return _finding(found, limits, Status.RED, f"the rerun too: {again.show()}", again)
    why = f"the rerun was above the floor: {again.show()}"
    return _finding(found, limits, Status.WARN, why, again)


def _few(found: Series) -> str:
    return f"{len(found.runs)} runs, a verdict needs {LEAST_JUDGED}"


def _not_comparable(found: Series, why: str) -> Finding:
    figures = {"runs": list(found.runs), "median": found.median}
    return Finding(
        found.name,
        Status.NOT_COMPARABLE,
        "a recorded floor",
        found.show(),
        why,
        MappingProxyType(figures),
    )


def _finding(
    found: Series, limits: Bounds, status: Status, why: str, again: Series | None = None
) -> Finding:
    figures: dict[str, Any] = {
        "runs": list(found.runs),
        "median": found.median,
        "recorded": limits.median,
        "floor": limits.floor,
        "warn": limits.warn,
    }
    if again is not None:
        figures["rerun"] = list(again.runs)
    expected = f"at least {found.show(limits.floor)} (recorded {found.show(limits.median)})"
    return Finding(found.name, status, expected, found.show(), why, MappingProxyType(figures))
