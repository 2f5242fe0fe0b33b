"""Rates of each stage between rows and a finished file: copy, check, hash, write, fsync.

``output_path.py FOLDER [TOKENS]``: FOLDER lies on the disk of the output. Samples have 512 tokens,
4 depths and Kimi's width in bfloat16. Prints one JSON object: GB/s, and files a second.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from harness.inside.rowchecks import row_faults
from harness.inside.spool import SpoolTask, SpoolWriter

TOKENS, COLUMNS, HIDDEN = 512, 4, 7168
SAMPLES, REPEATS = 24, 3
MEMORY = Path("/dev/shm")


def best(work: Callable[[], int]) -> dict[str, float]:
    """GB/s of some repeats, the first left out: it finds memory and caches cold."""
    rates = []
    for _ in range(REPEATS + 1):
        started = time.monotonic()
        done = work()
        rates.append(done / (time.monotonic() - started) / 1e9)
    kept = rates[1:]
    return {
        "median": round(statistics.median(kept), 3),
        "least": round(min(kept), 3),
        "most": round(max(kept), 3),
    }


def sample(index: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(index)
    return torch.randn(TOKENS, COLUMNS, HIDDEN, generator=draw).to(torch.bfloat16)


def size_of(rows: torch.Tensor) -> int:
    return rows.numel() * rows.element_size()


def copied(rows: torch.Tensor) -> Callable[[], int]:
    """Device to pinned host memory, as both captures copy."""
    device, host = rows.cuda(), torch.empty_like(rows, pin_memory=True)

    def work() -> int:
        for _ in range(SAMPLES):
            host.copy_(device, non_blocking=True)
        torch.cuda.synchronize()
        return SAMPLES * size_of(rows)

    return work


def spooled(folder: Path, samples: list[torch.Tensor], *, fsync: bool) -> Callable[[], int]:
    """The harness's own writer: checked, hashed, renamed, told."""

    def work() -> int:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            writer = SpoolWriter(Path(place), fsync=fsync)
            waiting = [
                writer.submit(SpoolTask(str(n), rows, list(range(TOKENS)), lambda: None))
                for n, rows in enumerate(samples)
            ]
            for one in waiting:
                one.result()
            whole = list(Path(place).glob("*.safetensors"))
            assert len(whole) == len(samples), f"{len(whole)} of {len(samples)} files"
        return sum(map(size_of, samples))

    return work


def plain_write(folder: Path, samples: list[torch.Tensor]) -> Callable[[], int]:
    """The disk's own rate: one file, one write a sample, one fsync at the end."""

    def work() -> int:
        with tempfile.TemporaryFile(dir=folder) as file:
            for rows in samples:
                file.write(memoryview(rows.view(-1).view(torch.uint8).numpy()))
            file.flush()
            os.fsync(file.fileno())
        return sum(map(size_of, samples))

    return work


def main() -> None:
    folder = Path(sys.argv[1])
    samples = [sample(index) for index in range(SAMPLES)]
    raw = memoryview(samples[0].view(-1).view(torch.uint8).numpy())

    def hashed() -> int:
        blake3(raw).digest()
        return len(raw)

    def checked() -> int:
        assert not row_faults(samples[0])
        return len(raw)

    found: dict[str, Any] = {
        "bytes_per_sample": size_of(samples[0]),
        "hash_one_thread": best(hashed),
        "check_one_thread": best(checked),
        "spool_to_memory": best(spooled(MEMORY, samples, fsync=False)),
        "spool_to_disk": best(spooled(folder, samples, fsync=False)),
        "spool_to_disk_fsync": best(spooled(folder, samples, fsync=True)),
        "disk_alone_fsync": best(plain_write(folder, samples)),
        "cores": os.cpu_count(),
    }
    if torch.cuda.is_available():
        found["copy_to_host"] = best(copied(samples[0]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
