"""Repeated runs of one figure, and how far apart they are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from harness.errors import UsageError

RATIO: Final = "ratio"
RATE: Final = "tok_per_s"
_ENDINGS: Final = (RATIO, RATE)


@dataclass(frozen=True)
class Series:
    """Runs of one figure, of which more is better.

    Attributes:
        name: ``ratio`` or ``*_ratio`` (of two speeds in one session, no unit), ``tok_per_s`` or
            ``*_tok_per_s`` (tokens a second).
        runs: The figure of each run, in their order.

    Raises:
        UsageError: ``baseline.unknown-figure``, ``baseline.no-runs`` or ``baseline.bad-run``.
    """

    name: str
    runs: tuple[float, ...]

    def __post_init__(self) -> None:
        if not any(self.name == end or self.name.endswith(f"_{end}") for end in _ENDINGS):
            raise _wrong(
                "baseline.unknown-figure", "a name that ends in ratio or tok_per_s", self.name, "it"
            )
        if not self.runs:
            raise _wrong("baseline.no-runs", "one run or more", "none", self.name)
        for run in self.runs:
            if isinstance(run, bool) or not math.isfinite(run) or run <= 0:
                raise _wrong("baseline.bad-run", "finite runs above 0", repr(run), self.name)

    @property
    def is_ratio(self) -> bool:
        """Whether it is a ratio, which the machine's mood moves less than it moves a rate."""
        return self.name.endswith(RATIO)

    @cached_property
    def median(self) -> float:
        """The middle run; of an even number, the mean of the middle two."""
        return statistics.median(self.runs)

    @cached_property
    def mad(self) -> float:
        """Median absolute deviation from the median, in the figure's unit, not scaled."""
        return statistics.median(abs(run - self.median) for run in self.runs)

    @property
    def spread(self) -> float:
        """``(max - min) / median``, a share."""
        return (max(self.runs) - min(self.runs)) / self.median

    def show(self, value: float | None = None) -> str:
        """Return a value of this figure as people read it; by default the median."""
        value = self.median if value is None else value
        return f"{value:.3f}" if self.is_ratio else f"{value:,.0f}"

    def show_runs(self) -> str:
        """Return every run as people read it."""
        return ", ".join(map(self.show, self.runs))


def series(name: str, runs: Sequence[float]) -> Series:
    """Make a series of numbers from anywhere; see :class:`Series` for what is refused."""
    return Series(name, tuple(float(run) if type(run) is int else run for run in runs))


def _wrong(id: str, expected: str, found: str, figure: str) -> UsageError:
    return UsageError(
        id,
        expected=expected,
        found=found,
        where=f"figure {figure}",
        next="measure again; docs/baselines.md says what a figure is",
    )
