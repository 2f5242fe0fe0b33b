"""May samples of two engines be mixed in one training set? Row errors against recorded noise.

Two releases never agree in every bit: kernels, batch shapes and libraries round in another
order, and where two experts are nearly level another one may be chosen. That is noise, and it
is recorded, per dtype and device. What is more than noise is a difference: a shift of a whole
depth moves the median, a fault in some rows the tail, another prompt's rows a whole sample.

The error of a row is ``norm(b - a) / norm(a)`` over its hidden values, per depth; A is the
data set that one has and trusts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from harness.oracles._spread import Spread

OTHER_ROW = 0.5
"""A row this far off is another row, not a rounded one: two unrelated rows are 1.4 apart."""

_CHUNK = 1 << 22
_SHOWN = 5
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Noise:
    """How far two right engines were seen apart.

    Attributes:
        row: A row with a larger error counts as differing.
        share: Share of rows (0 to 1) that may differ in one depth: expert choices that flip.
        median: Largest median of row errors in one depth.
        source: Where and how it was measured.
    """

    row: float
    share: float
    median: float
    source: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Read an entry of ``baselines/noise.json``.

        Raises:
            KeyError: A figure is missing.
        """
        row, share, median = (float(body[name]) for name in ("row", "share", "median"))
        return cls(row=row, share=share, median=median, source=str(body["source"]))


@dataclass(frozen=True)
class DepthDrift:
    """Row errors of one depth.

    Attributes:
        depth: The depth.
        rows: Rows compared.
        median: Of the row errors (at most 1.9 % too large, as ``p99``).
        p99: The error that 99 % of the rows do not exceed.
        max: The largest, exact; infinite where a value is not finite.
        differing: Rows over the noise's limit.
        equal: Rows without any difference in value.
        faults: One sentence for each limit that is passed.
    """

    depth: int
    rows: int
    median: float
    p99: float
    max: float
    differing: int
    equal: int
    faults: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class Drift:
    """Two data sets beside each other.

    Attributes:
        samples: Samples compared.
        depths: One entry a depth, in file order.
        others: Names of samples most of whose rows are other rows; a few of them.
        other_samples: How many such samples there are.
        noise: What it was held to.
    """

    samples: int
    depths: tuple[DepthDrift, ...]
    others: tuple[str, ...]
    other_samples: int
    noise: Noise

    @property
    def same(self) -> bool:
        """Whether the samples may be mixed."""
        return not self.other_samples and not any(one.faults for one in self.depths)

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object."""
        return {
            "same": self.same,
            "samples": self.samples,
            "other_samples": self.other_samples,
            "others": list(self.others),
            "depths": [one.to_json() for one in self.depths],
            "noise": asdict(self.noise),
        }


class Mixing:
    """Takes pairs of samples, one after another, and keeps counts only.

    Args:
        depths: Depth of each column.
        noise: What is allowed.
    """

    def __init__(self, depths: Sequence[int], noise: Noise) -> None:
        self._depths = tuple(depths)
        self._noise = noise
        self._spread = [Spread() for _ in self._depths]
        self._differing = [0] * len(self._depths)
        self._samples = 0
        self._others: list[str] = []
        self._other_samples = 0

    def add(self, name: str, errors: npt.NDArray[np.float64]) -> None:
        """Count one sample's row errors ``[tokens, columns]``, see :func:`row_errors`."""
        self._samples += 1
        for column, spread in enumerate(self._spread):
            spread.add(errors[:, column])
            self._differing[column] += int((errors[:, column] > self._noise.row).sum())
        if ((errors > OTHER_ROW).mean(axis=0) > 0.5).any():
            self._other_samples += 1
            if len(self._others) < _SHOWN:
                self._others.append(name)

    def result(self) -> Drift:
        """Judge what was counted."""
        return Drift(
            samples=self._samples,
            depths=tuple(self._depth(column) for column in range(len(self._depths))),
            others=tuple(self._others),
            other_samples=self._other_samples,
            noise=self._noise,
        )

    def _depth(self, column: int) -> DepthDrift:
        spread, noise = self._spread[column], self._noise
        differing, median = self._differing[column], spread.quantile(0.5)
        faults = []
        if differing > noise.share * spread.count:
            share = differing / spread.count
            faults.append(
                f"{differing} of {spread.count} rows ({share:.2%}) differ by more than "
                f"{noise.row:g}, noise allows {noise.share:.2%}"
            )
        if median > noise.median:
            faults.append(f"median row error {median:.2e}, noise allows {noise.median:.0e}")
        return DepthDrift(
            depth=self._depths[column],
            rows=spread.count,
            median=median,
            p99=spread.quantile(0.99),
            max=spread.max,
            differing=differing,
            equal=spread.zeros,
            faults=tuple(faults),
        )


def row_errors(one: Floats, two: Floats) -> npt.NDArray[np.float64]:
    """Return ``norm(two - one) / norm(one)`` over the last axis; infinite, never NaN.

    Args:
        one: ``[tokens, columns, hidden]`` of the trusted side.
        two: The same shape.

    Returns:
        float64 ``[tokens, columns]``. A row of zeros has error 0 beside zeros, else infinity.
    """
    tokens, columns, hidden = one.shape
    found = np.empty((tokens, columns))
    step = max(1, _CHUNK // max(1, columns * hidden))
    for start in range(0, tokens, step):
        # float64: the norm of a wide row must not add an error of its own.
        truth = one[start : start + step].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            gap = np.linalg.norm(two[start : start + step] - truth, axis=-1)
            error = gap / np.linalg.norm(truth, axis=-1)
        error[gap == 0] = 0.0
        found[start : start + step] = np.where(np.isfinite(error), error, np.inf)
    return found
