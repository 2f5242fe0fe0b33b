"""Peak memory of this process's descendants: proportional shares, summed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.host.processes import descendants

EVERY_S = 0.5


@dataclass
class Peak:
    """The highest sum seen, in bytes."""

    bytes: int = 0


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """Sample while the block runs."""
    peak, ended = Peak(), threading.Event()

    def sample() -> None:
        while not ended.wait(EVERY_S):
            peak.bytes = max(peak.bytes, sum(_share(process.pid) for process in descendants([pid])))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _share(pid: int) -> int:
    """Bytes of one process, pages that it shares counted in part; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
    return int(line.split()[1]) * 1024
