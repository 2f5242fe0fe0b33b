"""Help for the host's tests: specs for the fake child, and who still runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.host import HostSpec, processes
from harness.host.processes import Process

CHILDREN = Path(__file__).parents[2] / "fixtures" / "host"


def spec(folder: Path, **changes: Any) -> HostSpec:
    """Return a spec of the fake child that logs to ``folder``."""
    env = {"PYTHONPATH": str(CHILDREN), **changes.pop("env", {})}
    values: dict[str, Any] = {
        "python": Path(sys.executable),
        "module": "host_child",
        "log": folder / "engine.log",
        "grace_s": 0.2,
        "env": env,
    }
    return HostSpec(**{**values, **changes})


def named(pids: Iterable[int]) -> list[Process]:
    """Name processes by start time while they run."""
    found = [processes.read(pid) for pid in pids]
    assert all(found), found
    return [process for process in found if process is not None]


def running(found: Iterable[Process]) -> list[Process]:
    """Return those that still run."""
    return [process for process in found if processes.alive(process)]


def running_after(found: Iterable[Process], seconds: float) -> list[Process]:
    """Wait until none runs, at most ``seconds``; return those that still do."""
    until = time.monotonic() + seconds
    left = running(found)
    while left and time.monotonic() < until:
        time.sleep(0.02)
        left = running(left)
    return left
