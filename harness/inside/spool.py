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

from harness.inside.rowchecks import faults_of_flags, row_faults

RESULTS = "results.jsonl"
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True)
class SpoolTask:
    """One request's rows, on the host.

    Attributes:
        key: The caller's key of the sample; also the file's stem.
        rows: Tensor [tokens, columns, hidden] on the CPU, ready once ``wait`` returns.
        token_ids: The prompt's token ids as the engine holds them.
        wait: Blocks until ``rows`` is filled (a device copy may be in flight).
        flags: What :func:`harness.inside.rowchecks.row_flags` said on the device, ready with the
            rows; None where they are still to be checked.
    """

    key: str
    rows: torch.Tensor
    token_ids: Sequence[int] | npt.NDArray[np.int64]
    wait: Callable[[], None]
    flags: torch.Tensor | None = None


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
        # Not torch.tensor: of a list of 512 it takes 0.3 ms, and holds the interpreter's lock.
        ids = np.asarray(task.token_ids, dtype="<i8")
        id_bytes = ids.tobytes()
        body = memoryview(rows.view(-1).view(torch.uint8).numpy())
        header = _header(_DTYPES[rows.dtype], (tokens, columns, hidden), len(body), len(ids))
        digest = blake3()
        final = self._folder / f"{task.key}.safetensors"
        temporary = self._folder / f"{task.key}.safetensors.tmp"
        try:
            with temporary.open("wb", buffering=0) as file:
                for part in (memoryview(header), body, memoryview(id_bytes)):
                    digest.update(part)
                    while part:
                        part = part[file.write(part) :]
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
            "bytes": len(header) + len(body) + len(id_bytes),
            "checksum": f"blake3:{digest.hexdigest()}",
            "token_hash": blake3(id_bytes).hexdigest(),
            "last_row": blake3(body[-columns * hidden * rows.element_size() :]).hexdigest(),
            "faults": row_faults(rows)
            if task.flags is None
            else faults_of_flags(task.flags.numpy(), rows),
        }

    def _report(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        with self._report_lock:
            fd = os.open(self._folder / RESULTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)


def _header(dtype: str, shape: tuple[int, int, int], body: int, tokens: int) -> bytes:
    """Build a safetensors header: ``hidden_states`` then ``token_ids`` (int64)."""
    fields = {
        "hidden_states": {"dtype": dtype, "shape": list(shape), "data_offsets": [0, body]},
        "token_ids": {"dtype": "I64", "shape": [tokens], "data_offsets": [body, body + 8 * tokens]},
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
