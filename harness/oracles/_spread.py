"""The distribution of many errors in memory that does not grow with their number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_LOW, _HIGH, _PER_DECADE = -15, 6, 128
_BINS = (_HIGH - _LOW) * _PER_DECADE


class Spread:
    """Counts of errors in bins of equal ratio; exact for the number, the zeros and the largest.

    A quantile is the upper edge of its bin: never too small, and at most 1.9 % too large.
    """

    def __init__(self) -> None:
        self._bins = np.zeros(_BINS, np.int64)
        self.count = 0
        self.zeros = 0
        self.max = 0.0

    def add(self, errors: npt.NDArray[np.floating[Any]]) -> None:
        """Count errors, 0 or more; infinity stands for a value that is not finite."""
        flat = np.asarray(errors, np.float64).ravel()
        if not flat.size:
            return
        self.count += flat.size
        self.max = max(self.max, float(flat.max()))
        above = flat[flat > 0]
        self.zeros += flat.size - above.size
        place = np.ceil((np.log10(np.minimum(above, 10.0**_HIGH)) - _LOW) * _PER_DECADE)
        index = np.clip(place.astype(np.int64), 1, _BINS) - 1
        self._bins += np.bincount(index, minlength=_BINS)

    def quantile(self, share: float) -> float:
        """Return an error that at least ``share`` (0 to 1) of all do not exceed; 0.0 of none."""
        wanted = int(np.ceil(share * self.count))
        if wanted <= self.zeros:
            return 0.0
        passed = self.zeros + np.cumsum(self._bins)
        bin = int(np.searchsorted(passed, wanted))
        if bin >= _BINS - 1:
            return self.max
        edge: float = 10.0 ** (_LOW + (bin + 1) / _PER_DECADE)
        return min(edge, self.max)
