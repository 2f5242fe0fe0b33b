"""Content checks of one sample's rows, on the bits: where the rows are, before they are written.

On a GPU the checks run there, as flags that travel with the rows: a writer thread that checked
in numpy would take the interpreter's lock again and again from the thread that launches the
forward pass. On a CPU they run in numpy, since torch would start a team of threads for each
writer thread.

Each fault is a dict: ``check`` (``finite``, ``constant-row``, ``equal-columns``), ``column``,
``count`` and ``first`` (row; for equal columns the other column).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from harness.inside.words import in_words

Fault = dict[str, Any]
_EXPONENTS = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
_PART = 1024


def row_flags(rows: torch.Tensor) -> torch.Tensor:
    """Check rows on their own device, reading them twice and writing nothing of their size.

    A forward pass runs beside this and needs the memory's bandwidth.

    Args:
        rows: Tensor [tokens, columns, hidden], any float dtype, contiguous in its rows.

    Returns:
        uint8 [tokens, columns + columns + pairs of columns]: not finite, constant, and equal as
        far as the sum of the bits tells; :func:`faults_of_flags` looks at such rows themselves.
    """
    least, most = torch.aminmax(rows, dim=-1)  # NaN where a row has one
    broken = ~(least.isfinite() & most.isfinite())
    constant = (least == most) & ~broken  # the two zeros count as one
    if rows.shape[-1] < 2:
        constant.zero_()  # one value alone says nothing
    # Of narrower integers torch would first write all values once more, as int64.
    sums = in_words(_bits(rows), torch.int64).sum(-1, dtype=torch.int64)
    pairs = [(sums[:, a] == sums[:, b]).unsqueeze(-1) for a, b in _pairs(rows.shape[1])]
    return torch.cat([broken, constant, *pairs], dim=-1).to(torch.uint8)


def flags_wide(columns: int) -> int:
    """How many flags a row has."""
    return 2 * columns + len(_pairs(columns))


def faults_of_flags(flags: npt.NDArray[np.uint8], rows: torch.Tensor) -> list[Fault]:
    """Turn the flags of all rows of a sample into faults.

    Args:
        flags: What :func:`row_flags` said.
        rows: Tensor [tokens, columns, hidden] on the CPU, the rows that it said it of.
    """
    columns, bits = rows.shape[1], bits_of(rows)
    found = _counted("finite", flags[:, :columns] != 0)
    found += _counted("constant-row", flags[:, columns : 2 * columns] != 0)
    equal = flags[:, 2 * columns :] != 0
    return found + [
        _equal(a, b, len(flags))
        for number, (a, b) in enumerate(_pairs(columns))
        if len(flags) and bool(equal[:, number].all()) and np.array_equal(bits[:, a], bits[:, b])
    ]


def row_faults(rows: torch.Tensor) -> list[Fault]:
    """Check one sample's rows on the CPU.

    Args:
        rows: Tensor [tokens, columns, hidden], any float dtype.
    """
    bits = bits_of(rows)
    exponent = bits.dtype.type(_EXPONENTS[rows.dtype])
    broken = np.zeros(bits.shape[:2], dtype=bool)
    for start in range(0, len(bits), _PART):  # what a step needs beside the rows stays small
        part = bits[start : start + _PART]
        broken[start : start + _PART] = (part & exponent).max(-1) == exponent
    found = _counted("finite", broken) + _counted("constant-row", _constant(bits) & ~broken)
    return found + [
        _equal(a, b, len(bits))
        for a, b in _pairs(bits.shape[1])
        # The first row is a cheap necessary condition.
        if len(bits)
        and np.array_equal(bits[0, a], bits[0, b])
        and np.array_equal(bits[:, a], bits[:, b])
    ]


def bits_of(rows: torch.Tensor) -> npt.NDArray[Any]:
    """View floats as integers; numpy knows no bfloat16."""
    bits: npt.NDArray[Any] = _bits(rows).numpy()
    return bits


def _bits(rows: torch.Tensor) -> torch.Tensor:
    return rows.view(torch.int32 if rows.element_size() == 4 else torch.int16)


def _pairs(columns: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(columns) for b in range(a + 1, columns)]


def _equal(a: int, b: int, rows: int) -> Fault:
    return {"check": "equal-columns", "column": b, "count": rows, "first": a}


def _counted(check: str, mask: npt.NDArray[np.bool_]) -> list[Fault]:
    if not mask.any():
        return []
    bad = {column: np.flatnonzero(mask[:, column]) for column in np.flatnonzero(mask.any(0))}
    return [
        {"check": check, "column": int(column), "count": len(rows), "first": int(rows[0])}
        for column, rows in bad.items()
    ]


def _constant(bits: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell which rows [tokens, columns] hold one value only; the two zeros count as one."""
    found = np.zeros(bits.shape[:2], dtype=bool)
    if bits.shape[-1] < 2:
        return found
    unsigned = np.iinfo(bits.dtype).max
    head, second = bits[..., 0] & unsigned, bits[..., 1] & unsigned
    # Few rows begin with two equal values; only those are read in full.
    for token, column in zip(*np.nonzero(head == second), strict=True):
        row = bits[token, column]
        same = bool((row == row[0]).all())
        found[token, column] = same or not bool((row & unsigned).any())
    return found
