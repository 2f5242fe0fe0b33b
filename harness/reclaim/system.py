"""The running system as reclaim sees it: processes, signals, the clock."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from harness.host import processes
from harness.host.processes import Process


class System(Protocol):
    """What reclaim needs of the machine; tests put their own in place."""

    def everything(self) -> list[Process]:
        """Return every visible process."""

    def environment(self, pid: int) -> Mapping[str, str]:
        """Return the environment that a process was started with; empty where unreadable."""

    def command_line(self, pid: int) -> str:
        """Return a process's command line; empty where there is none."""

    def send(self, process: Process, number: int) -> bool:
        """Send a signal to this very process; whether it was delivered."""

    def keeps(self, process: Process) -> bool:
        """Tell whether this is a resource tracker, which ends by itself after cleaning."""

    def clock(self) -> float:
        """Return monotonic seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Linux:
    """This machine."""

    def everything(self) -> list[Process]:
        """Return every visible process."""
        return processes.everything()

    def environment(self, pid: int) -> Mapping[str, str]:
        """Return the environment that a process was started with."""
        return processes.environment(pid)

    def command_line(self, pid: int) -> str:
        """Return a process's command line."""
        return processes.command_line(pid)

    def send(self, process: Process, number: int) -> bool:
        """Send a signal to this very process."""
        return processes.send(process, number)

    def keeps(self, process: Process) -> bool:
        """Tell a resource tracker."""
        return processes.keeps(process)

    def clock(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
