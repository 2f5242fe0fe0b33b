"""The one spool writer: rows of one request become one safetensors file.

Every capture hands its rows to :class:`SpoolWriter`. A file is written under a
temporary name in the spool folder, hashed and checked while it is written, and
renamed when whole; then one JSON line in ``results.jsonl`` tells of it. So a name
without ``.tmp`` in the spool is always a complete file, and no sample is read twice.

Durability: by default no fsync per sample (``fsync=False``). After a power cut a
sample can be short; its checksum in the manifest shows that, and a resumed run
makes it again.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3

RESULTS = "results.jsonl"
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_PART = 2 << 20
"""Bytes that are hashed, checked and written while they are still in a core's cache."""
_EXPONENTS = {torch.float32: 0x7F800000, torch.bfloat16: 0x7F80, torch.float16: 0x7C00}


@dataclass(frozen=True)
class SpoolTask:
    """One request's rows, on the host.

    Attributes:
        key: The caller's key of the sample; also the file's stem.
        rows: Tensor [tokens, columns, hidden] on the CPU, ready once ``wait`` returns.
        token_ids: The prompt's token ids as the engine holds them.
        wait: Blocks until ``rows`` is filled (a device copy may be in flight).
    """

    key: str
    rows: torch.Tensor
    token_ids: Sequence[int]
    wait: Callable[[], None]


class SpoolWriter:
    """Writes tasks in a few threads and reports each in ``results.jsonl``."""

    def __init__(
        self,
        folder: Path,
        *,
        threads: int = 4,
        max_pending_bytes: int = 4 << 30,
        fsync: bool = False,
    ) -> None:
        self._folder = folder
        self._fsync = fsync
        self._max_pending = max_pending_bytes
        self._pending = 0
        self._room = threading.Condition()
        self._report_lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="hs-spool")

    def submit(self, task: SpoolTask) -> Future[None]:
        """Queue a task; blocks while too many bytes wait to be written.

        A task is whole when it is submitted, so waiting here can never depend on
        the caller's own progress.
        """
        size = task.rows.numel() * task.rows.element_size()
        with self._room:
            self._room.wait_for(
                lambda: self._pending == 0 or self._pending + size <= self._max_pending
            )
            self._pending += size
        return self._pool.submit(self._run, task, size)

    def _run(self, task: SpoolTask, size: int) -> None:
        try:
            task.wait()
            line = self._write(task)
        except OSError as error:
            line = {"key": task.key, "error": "os", "errno": error.errno, "message": str(error)}
        except Exception as error:
            line = {
                "key": task.key,
                "error": "internal",
                "message": f"{type(error).__name__}: {error}",
            }
        finally:
            with self._room:
                self._pending -= size
                self._room.notify_all()
        try:
            self._report(line)
        except OSError as error:
            # Nobody can be told through a full disk; a worker's death is noticed at once.
            sys.stderr.write(f"harness: cannot report sample {task.key}: {error}\n")
            sys.stderr.flush()
            os.abort()

    def _write(self, task: SpoolTask) -> dict[str, Any]:
        rows = task.rows.contiguous()
        tokens, columns, hidden = rows.shape
        ids = torch.tensor(list(task.token_ids), dtype=torch.int64)
        id_bytes = ids.numpy().tobytes()
        bits = _bits(rows)
        header = _header(_DTYPES[rows.dtype], (tokens, columns, hidden), bits.nbytes, len(ids))
        digest, checks = blake3(), RowChecks(rows.dtype, columns)
        step = max(1, _PART // max(1, bits[:1].nbytes))
        final = self._folder / f"{task.key}.safetensors"
        temporary = self._folder / f"{task.key}.safetensors.tmp"
        try:
            with temporary.open("wb", buffering=0) as file:
                _put(file, digest, header)
                for start in range(0, tokens, step):
                    part = bits[start : start + step]
                    checks.see(part)
                    _put(file, digest, part.reshape(-1).view(np.uint8))
                _put(file, digest, id_bytes)
                if self._fsync:
                    os.fsync(file.fileno())
            temporary.rename(final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return {
            "key": task.key,
            "file": final.name,
            "rows": tokens,
            "columns": columns,
            "hidden": hidden,
            "dtype": str(rows.dtype).removeprefix("torch."),
            "bytes": len(header) + bits.nbytes + len(id_bytes),
            "checksum": f"blake3:{digest.hexdigest()}",
            "token_hash": blake3(id_bytes).hexdigest(),
            "last_row": blake3(memoryview(bits[-1:].reshape(-1).view(np.uint8))).hexdigest(),
            "faults": checks.faults(),
        }

    def _report(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        with self._report_lock:
            fd = os.open(self._folder / RESULTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)


def _put(file: Any, digest: Any, data: Any) -> None:
    """Hash bytes and write all of them."""
    rest = memoryview(data)
    digest.update(rest)
    while rest:
        rest = rest[file.write(rest) :]


def row_faults(rows: torch.Tensor) -> list[dict[str, Any]]:
    """Check the content of one sample's rows; see :class:`RowChecks`.

    Args:
        rows: Tensor [tokens, columns, hidden], any float dtype, on the CPU.
    """
    checks = RowChecks(rows.dtype, rows.shape[1])
    checks.see(_bits(rows))
    return checks.faults()


class RowChecks:
    """Content checks of one sample, fed with its rows part by part.

    They look at bits, in numpy: torch would start a team of threads for each writer thread,
    and they take the forward pass's cores.

    Args:
        dtype: Float dtype of the rows.
        columns: Columns of each row.
    """

    def __init__(self, dtype: torch.dtype, columns: int) -> None:
        self._exponent = _EXPONENTS[dtype]
        self._rows = 0
        self._found: dict[tuple[str, int], dict[str, Any]] = {}
        self._equal = [(a, b) for a in range(columns) for b in range(a + 1, columns)]

    def see(self, bits: npt.NDArray[Any]) -> None:
        """Check further rows: integers [rows, columns, hidden] that hold the floats' bits."""
        exponent = bits.dtype.type(self._exponent)
        broken = (bits & exponent).max(-1) == exponent
        self._count("finite", broken)
        self._count("constant-row", _constant(bits) & ~broken)
        self._equal = [
            (a, b)
            for a, b in self._equal
            # The first row is a cheap necessary condition.
            if np.array_equal(bits[0, a], bits[0, b]) and np.array_equal(bits[:, a], bits[:, b])
        ]
        self._rows += len(bits)

    def faults(self) -> list[dict[str, Any]]:
        """Return one entry for each kind of fault in a column.

        Each has ``check`` (``finite``, ``constant-row``, ``equal-columns``), ``column``,
        ``count`` and ``first`` (row; for equal columns the other column).
        """
        equal = [
            {"check": "equal-columns", "column": b, "count": self._rows, "first": a}
            for a, b in self._equal
        ]
        return [*self._found.values(), *(equal if self._rows else ())]

    def _count(self, check: str, mask: npt.NDArray[np.bool_]) -> None:
        if not mask.any():
            return
        for column in np.flatnonzero(mask.any(0)).tolist():
            bad = np.flatnonzero(mask[:, column])
            first = {
                "check": check,
                "column": column,
                "count": 0,
                "first": self._rows + int(bad[0]),
            }
            self._found.setdefault((check, column), first)["count"] += len(bad)


def _bits(rows: torch.Tensor) -> npt.NDArray[Any]:
    """View floats as integers; numpy knows no bfloat16."""
    wide = torch.int32 if rows.element_size() == 4 else torch.int16
    bits: npt.NDArray[Any] = rows.view(wide).numpy()
    return bits


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


def _header(dtype: str, shape: tuple[int, int, int], body: int, tokens: int) -> bytes:
    """Build a safetensors header: ``hidden_states`` then ``token_ids`` (int64)."""
    fields = {
        "hidden_states": {"dtype": dtype, "shape": list(shape), "data_offsets": [0, body]},
        "token_ids": {"dtype": "I64", "shape": [tokens], "data_offsets": [body, body + 8 * tokens]},
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
