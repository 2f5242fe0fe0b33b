"""How many engines a run of the tests has started, by what they left in their logs."""

from __future__ import annotations

from pathlib import Path

MOST = 14
"""Engine starts that the tests of every day may take, over both lanes."""

LOADS = b"Starting to load model"
"""What a worker of vLLM says, on 0.16 as on 0.32; a start has a log file of its own."""


def logs_of_starts(folder: Path) -> list[Path]:
    """Return the logs below a folder that tell of a load."""
    logs = (path for path in folder.rglob("*.log") if path.is_file() and not path.is_symlink())
    return sorted(path for path in logs if LOADS in path.read_bytes())
