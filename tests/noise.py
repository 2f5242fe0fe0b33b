"""How far two captures of one prompt are apart, depth by depth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Noise:
    """The distance at one depth, relative to the first capture.

    Attributes:
        depth: Which one.
        sample: Norm of the difference over the norm, a whole prompt at once; the worst prompt.
        row: The same of the worst row.
    """

    depth: int
    sample: float
    row: float

    def within(self, bound: Bound) -> bool:
        """Whether sample and row are within a bound; NaN never is."""
        return self.sample <= bound.sample and self.row <= bound.row


@dataclass(frozen=True)
class Bound:
    """The most that noise may be, of a whole sample and of its worst row.

    The same prompt in another batch, order or cut; bfloat16. Each is about twice the worst that was
    measured on an H200 (``fixtures/evidence``, ``noise``).
    """

    sample: float
    row: float = math.inf

    def to_json(self) -> dict[str, float | None]:
        return {"sample": self.sample, "row": None if math.isinf(self.row) else self.row}


# Worst 0.015, with one GPU and with two. One wrong row of 512 is 0.06, another prompt 1.4.
EVEN = Bound(0.05)
# Random weights let a few rows outgrow the others by a hundred times, and the norm of a sample is
# theirs: worst 0.070, another prompt 0.6 to 0.9.
UNEVEN = Bound(0.15)
# A narrow router's scores lie close together, and another batch shape turns some over: worst 0.085,
# a row 0.74. A row of another prompt is 1.4 away.
NARROW = Bound(0.15, row=1.0)
_ALIKE, _WIDE = 1.0, 1024


def bound_of(another: float, hidden: int) -> Bound:
    """Return the bound of a depth.

    Args:
        another: How far another prompt is away there, whole samples.
        hidden: The model's width.
    """
    if hidden < _WIDE:
        return NARROW
    return EVEN if another >= _ALIKE else UNEVEN


def noise(pairs: Iterable[tuple[Rows, Rows]], depths: Sequence[int]) -> list[Noise]:
    """Compare pairs of ``[tokens, columns, hidden]``; the worst pair counts."""
    worst = {depth: Noise(depth, 0.0, 0.0) for depth in depths}
    for first, second in pairs:
        assert first.shape == second.shape, (first.shape, second.shape)
        for column, depth in enumerate(depths):
            one, two = first[:, column], second[:, column]
            apart = np.linalg.norm(one - two, axis=-1)
            size = np.linalg.norm(one, axis=-1)
            sample = float(np.linalg.norm(apart) / np.linalg.norm(size))
            row = float((apart / size).max())
            before = worst[depth]
            # A NaN is kept: it is smaller than nothing.
            worst[depth] = Noise(
                depth,
                before.sample if sample <= before.sample else sample,
                before.row if row <= before.row else row,
            )
    return list(worst.values())


def figures(found: Iterable[Noise]) -> list[dict[str, float]]:
    """As plain figures, for a line of JSON."""
    return [
        {**asdict(one), "sample": round(one.sample, 6), "row": round(one.row, 6)} for one in found
    ]
