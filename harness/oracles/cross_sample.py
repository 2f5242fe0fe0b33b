"""The cross-sample oracle: did a sample get rows that belong to another one?

A row of a causal model is decided by the tokens up to it. So two equal rows are legal only for
equal prefixes; anything else is a stale buffer, a block handed out twice, or an offset that ran
wrong. One exception is physics, not a fault: a prefix that repeats a single token gives the same
row at every length, since attention over equal values is that value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.oracles.finding import Finding

__all__ = ["CrossSample"]

_Words = npt.NDArray[np.uint64]
_BLOCK_BYTES = 1 << 20
_REPORTED = 100


class CrossSample:
    """Gathers a fingerprint of each row of the last column and finds equal ones.

    Memory is bounded: 24 bytes a row, up to ``max_rows`` rows. Beyond that only rows whose
    fingerprint begins with a zero bit are kept, then two zero bits, and so on. Equal rows have
    equal fingerprints, so of a repeated row both copies are kept or neither: a repeated block
    of n rows is found with probability ``1 - (1 - 2**-level)**n``. The last row of each sample
    is always kept, so a sample that is another one as a whole is always found.
    """

    def __init__(self, *, max_rows: int = 4_000_000) -> None:
        """Start empty.

        Args:
            max_rows: How many row fingerprints to keep (24 bytes each; twice that while
                they are thinned out or compared).
        """
        self._max_rows = max_rows
        self._level = 0
        self._names: list[str] = []
        self._kept: list[_Rows] = []
        self._tails: list[_Rows] = []
        self._count = 0
        self._weights: dict[int, _Words] = {}

    @property
    def level(self) -> int:
        """How often rows were thinned by half; 0 while the oracle is exhaustive."""
        return self._level

    def add(
        self,
        sample: str,
        hidden: npt.NDArray[Any],
        token_ids: npt.NDArray[np.integer[Any]],
        *,
        depths: Sequence[int],
    ) -> None:
        """Take in a sample.

        Args:
            sample: Its name, for the findings.
            hidden: ``[tokens, columns, hidden]`` in any of the dtypes a sample has.
            token_ids: ``[tokens]``.
            depths: Depth of each column. The last column of depth 1 or more is used: rows of
                depth 0 are embeddings, and equal for equal tokens. Without one nothing is done.
        """
        deep = [column for column, depth in enumerate(depths) if depth > 0]
        if not deep or hidden.shape[0] != len(token_ids) or not len(token_ids):
            return
        rows = self._hash_rows(hidden[:, deep[-1]])
        number = np.full(len(rows), len(self._names), np.uint32)
        place = np.arange(len(rows), dtype=np.uint32)
        self._names.append(sample)
        found = _Rows(rows, _hash_prefixes(token_ids), number, place)
        # A row of zeros hashes to zero; it is its own finding and equal to any other.
        self._tails.append(found.where(np.arange(len(rows)) == len(rows) - 1))
        self._keep(found.where(rows != 0))

    def findings(self) -> list[Finding]:
        """Compare all rows taken in so far.

        Returns:
            One finding for each pair of samples (or a sample with itself) that shares rows,
            named by the later sample; at most a hundred.
        """
        if not self._names:
            return []
        rows = _Rows.join(self._kept + self._tails)
        # By row, then by prefix, then by place: unlike neighbours with one row are hits.
        order = np.lexsort((rows.place, rows.number, rows.prefix, rows.row))
        rows = rows.where(order)
        hits = np.flatnonzero(
            (rows.row[1:] == rows.row[:-1])
            & (rows.prefix[1:] != rows.prefix[:-1])
            & (rows.row[1:] != 0)
        )
        pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for hit in hits.tolist():
            a, b = sorted((int(rows.number[i]), int(rows.place[i])) for i in (hit, hit + 1))
            pairs.setdefault((a[0], b[0]), []).append((a[1], b[1]))
        return [self._finding(*pair, places) for pair, places in sorted(pairs.items())[:_REPORTED]]

    def _finding(self, first: int, second: int, places: list[tuple[int, int]]) -> Finding:
        there, here = min(places)
        return Finding(
            self._names[second],
            "cross-sample",
            "rows that no other token sequence has",
            f"row {here} equals row {there} of {self._names[first]} ({len(places)} such rows)",
        )

    def _keep(self, rows: _Rows) -> None:
        rows = rows.where(self._wanted(rows.row))
        self._kept.append(rows)
        self._count += len(rows.row)
        while self._count > self._max_rows:
            self._level += 1
            everything = _Rows.join(self._kept)
            self._kept = [everything.where(self._wanted(everything.row))]
            self._count = len(self._kept[0].row)

    def _wanted(self, row: _Words) -> npt.NDArray[np.bool_]:
        if self._level == 0:
            return np.ones(len(row), np.bool_)
        wanted: npt.NDArray[np.bool_] = (row >> np.uint64(64 - self._level)) == 0
        return wanted

    def _hash_rows(self, column: npt.NDArray[Any]) -> _Words:
        """Hash each row: a sum of its 16- or 32-bit words times fixed random 64-bit weights.

        The words are widened first. A product modulo 2**64 would otherwise lose what rows
        differ in where that is only the upper bits of a word.
        """
        tokens, width = column.shape
        weights = self._weights_for(width)
        unsigned = f"u{column.dtype.itemsize}"
        hashes = np.empty(tokens, np.uint64)
        step = max(1, _BLOCK_BYTES // (8 * width))
        for first in range(0, tokens, step):
            block = np.ascontiguousarray(column[first : first + step]).view(unsigned)
            hashes[first : first + step] = block.astype(np.uint64) @ weights
        return hashes

    def _weights_for(self, width: int) -> _Words:
        if width not in self._weights:
            random = np.random.default_rng(width)
            odd = random.integers(0, 2**64, size=width, dtype=np.uint64) | np.uint64(1)
            self._weights[width] = odd
        return self._weights[width]


class _Rows:
    """Parallel arrays: row hash, prefix hash, number of the sample, position in it."""

    def __init__(
        self,
        row: _Words,
        prefix: _Words,
        number: npt.NDArray[np.uint32],
        place: npt.NDArray[np.uint32],
    ) -> None:
        self.row, self.prefix, self.number, self.place = row, prefix, number, place

    def where(self, choice: npt.NDArray[Any]) -> _Rows:
        return _Rows(self.row[choice], self.prefix[choice], self.number[choice], self.place[choice])

    @staticmethod
    def join(parts: Sequence[_Rows]) -> _Rows:
        return _Rows(
            np.concatenate([part.row for part in parts]),
            np.concatenate([part.prefix for part in parts]),
            np.concatenate([part.number for part in parts]),
            np.concatenate([part.place for part in parts]),
        )


def _hash_prefixes(token_ids: npt.NDArray[np.integer[Any]]) -> _Words:
    """Hash ``token_ids[:i + 1]`` for each i; a run of one token hashes alike at any length."""
    ids = np.asarray(token_ids).astype(np.uint64)
    places = np.arange(len(ids), dtype=np.uint64)
    hashes = np.cumsum(_mix(ids ^ (places << np.uint64(32))), dtype=np.uint64)
    alike = np.logical_and.accumulate(ids == ids[0])
    hashes[alike] = _mix(ids[:1] ^ np.uint64(1 << 63))[0]
    return hashes


def _mix(words: _Words) -> _Words:
    """Spread each word over 64 bits (the finaliser of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
