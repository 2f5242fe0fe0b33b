"""How far two captures of one prompt are apart, depth by depth."""

from __future__ import annotations

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

    def within(self, bound: float) -> bool:
        """Whether the whole sample is within a bound; NaN never is."""
        return self.sample <= bound


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
