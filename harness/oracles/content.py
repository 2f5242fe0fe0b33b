"""Content oracles: can these rows be the hidden states of these tokens at all?

Cheap checks on the bits of one sample, exact for every dtype: no value is converted. They
cannot tell a wrong layer from a right one (the canary and parity do); they catch what a broken
copy, buffer or file leaves behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.oracles.finding import Finding

__all__ = ["check_sample"]

# dtype name -> (numpy dtype of the array, unsigned view, signed view, bits of +infinity)
_FORMS: dict[str, tuple[str, str, str, int]] = {
    "float32": ("float32", "u4", "i4", 0x7F800000),
    "float16": ("float16", "u2", "i2", 0x7C00),
    "bfloat16": ("uint16", "u2", "i2", 0x7F80),
}
_BLOCK_BYTES = 1 << 20  # stays in a core's cache over the three passes

_Bools = npt.NDArray[np.bool_]


def check_sample(
    sample: str,
    hidden: npt.NDArray[Any],
    token_ids: npt.NDArray[np.integer[Any]],
    *,
    expected_ids: Sequence[int] | npt.NDArray[np.integer[Any]],
    depths: Sequence[int],
    dtype: str,
    hidden_size: int | None = None,
) -> list[Finding]:
    """Check one sample.

    Args:
        sample: Its name, for the findings.
        hidden: ``[tokens, columns, hidden]``: float32, float16, or uint16 with the bits of
            bfloat16.
        token_ids: ``[tokens]``, as stored beside the rows.
        expected_ids: The ids that were sent.
        depths: Depth of each column.
        dtype: The dtype that ``hidden`` must have (``float32``, ``float16``, ``bfloat16``).
        hidden_size: The width that a row must have, where it is known.

    Returns:
        One finding for each kind of fault and column; empty for a good sample. Checks:
        ``dtype``, ``columns``, ``hidden-size``, ``rows``, ``token-ids``, ``finite``,
        ``zero-row``, ``constant-row``, ``equal-columns``.
    """
    held, unsigned, signed, infinity = _FORMS[dtype]
    if hidden.dtype.name != held or hidden.ndim != 3:
        found = f"{hidden.dtype.name} with {hidden.ndim} axes"
        return [Finding(sample, "dtype", f"{dtype} (held as {held}) with 3 axes", found)]
    findings = list(_shape(sample, hidden, len(depths), len(expected_ids), hidden_size))
    findings += _tokens(sample, np.asarray(token_ids), np.asarray(expected_ids))
    if hidden.size == 0 or len(depths) != hidden.shape[1]:
        return findings
    bits = hidden.view(unsigned)
    high, low, top = _extremes(bits, signed)
    sign = 1 << (8 * bits.dtype.itemsize - 1)
    # Floats order like their bits: as signed numbers among the positive ones, as unsigned
    # numbers by magnitude among the negative ones. So the extremes show every special value.
    broken = (top >= infinity) | (high >= (sign | infinity))
    zero = (high <= sign) & (top <= 0)
    flat = (high == low) & ~zero & ~broken & (hidden.shape[2] > 1)
    findings += _rows(sample, "finite", "finite values only", broken, depths)
    findings += _rows(
        sample, "zero-row", "no row of zeros", _illegal(zero, depths, token_ids), depths
    )
    findings += _rows(sample, "constant-row", "no row of one value", flat, depths)
    findings += _equal_columns(sample, bits, (high, low, top), zero, depths)
    return findings


def _shape(
    sample: str, hidden: npt.NDArray[Any], columns: int, tokens: int, width: int | None
) -> Iterator[Finding]:
    wanted = (("rows", tokens, 0), ("columns", columns, 1), ("hidden-size", width, 2))
    for check, size, axis in wanted:
        if size is not None and hidden.shape[axis] != size:
            yield Finding(sample, check, str(size), str(hidden.shape[axis]))


def _tokens(sample: str, found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> Iterator[Finding]:
    if found.shape != expected.shape:
        yield Finding(sample, "token-ids", f"{expected.size} ids", f"shape {list(found.shape)}")
        return
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        place = int(wrong[0])
        yield Finding(
            sample,
            "token-ids",
            f"{expected[place]} at position {place}",
            f"{found[place]} ({wrong.size} of {expected.size} differ)",
        )


def _extremes(
    bits: npt.NDArray[Any], signed: str
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return ``[tokens, columns]`` largest and smallest unsigned, and largest signed, bits."""
    tokens, columns, width = bits.shape
    high = np.empty((tokens, columns), bits.dtype)
    low = np.empty_like(high)
    top = np.empty((tokens, columns), signed)
    step = max(1, _BLOCK_BYTES // max(1, columns * width * bits.dtype.itemsize))
    for first in range(0, tokens, step):
        block = bits[first : first + step]
        block.max(-1, out=high[first : first + step])
        block.min(-1, out=low[first : first + step])
        block.view(signed).max(-1, out=top[first : first + step])
    return high, low, top


def _illegal(
    zero: _Bools, depths: Sequence[int], token_ids: npt.NDArray[np.integer[Any]]
) -> _Bools:
    """Allow one thing: at depth 0 the padding token's embedding may be all zeros."""
    legal = zero.copy()
    for column, depth in enumerate(depths):
        rows = zero[:, column]
        if depth == 0 and len(rows) == len(token_ids) and np.unique(token_ids[rows]).size == 1:
            legal[:, column] = rows.all()
    return legal


def _rows(
    sample: str, check: str, expected: str, wrong: _Bools, depths: Sequence[int]
) -> Iterator[Finding]:
    for column, depth in enumerate(depths):
        rows = np.flatnonzero(wrong[:, column])
        if rows.size:
            found = f"{rows.size} of {len(wrong)} rows, first row {rows[0]}"
            yield Finding(sample, check, f"{expected} at depth {depth}", found)


def _equal_columns(
    sample: str,
    bits: npt.NDArray[Any],
    extremes: tuple[npt.NDArray[Any], ...],
    zero: _Bools,
    depths: Sequence[int],
) -> Iterator[Finding]:
    for a in range(len(depths)):
        for b in range(a + 1, len(depths)):
            # Rows with equal extremes are few, so whole rows are compared only there.
            alike = ~(zero[:, a] & zero[:, b])
            for values in extremes:
                alike &= values[:, a] == values[:, b]
            rows = np.flatnonzero(alike)
            if rows.size:
                rows = rows[(bits[rows, a] == bits[rows, b]).all(-1)]
            if rows.size:
                yield Finding(
                    sample,
                    "equal-columns",
                    f"depth {depths[a]} and depth {depths[b]} to differ in every row",
                    f"{rows.size} of {len(bits)} rows equal, first row {rows[0]}",
                )
