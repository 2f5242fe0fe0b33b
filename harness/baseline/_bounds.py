"""The rules of a baseline as numbers: when one may exist, and where its floor lies.

``docs/baselines.md`` has the reasons. The floor follows from the recorded runs alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.baseline._series import Series

LEAST_RUNS: Final = 5
"""Runs of each figure that a baseline must rest on."""

LARGEST_SPREAD: Final = 0.05
"""Largest ``(max - min) / median`` of the runs that a baseline may rest on."""

LEAST_JUDGED: Final = 3
"""Runs that a verdict needs: of fewer, a median says nothing."""

MADS: Final = 3.0
"""Median absolute deviations below the median that the floor leaves to noise."""

LEAST_MARGIN_RATE: Final = 0.05
"""Least distance of floor and median for tokens a second, as a share of the median."""

LEAST_MARGIN_RATIO: Final = 0.02
"""The same for a ratio: both speeds come from one session, so the machine cancels out."""

_WARN: Final = 3.0


@dataclass(frozen=True)
class Bounds:
    """What recorded runs say of later ones; all in the figure's unit.

    Attributes:
        median: The recorded median.
        margin: ``max(3 MAD, least share of the median)``.
    """

    median: float
    margin: float

    @property
    def floor(self) -> float:
        """Below it, a median is too slow."""
        return self.median - self.margin

    @property
    def warn(self) -> float:
        """Below it, a median is worth a look: a third of the way to the floor."""
        return self.median - self.margin / _WARN

    @property
    def ceiling(self) -> float:
        """Above it, the baseline is out of date, or something is not done that should be."""
        return self.median + self.margin


def bounds(recorded: Series) -> Bounds:
    """Return the bounds that follow from recorded runs."""
    least = LEAST_MARGIN_RATIO if recorded.is_ratio else LEAST_MARGIN_RATE
    return Bounds(recorded.median, max(MADS * recorded.mad, least * recorded.median))
