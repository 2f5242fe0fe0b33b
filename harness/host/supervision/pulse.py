"""Whether the engine's processes and devices do anything.

An engine is *idle* between two looks when none of its processes used 5 % of a core, waited
for one as long, or touched storage, and no device was busy or changed its used memory. Busy
proves little (a worker that waits may spin), idle with a silent log proves a hang. Waiting
counts because a crowded machine starves a healthy load: 8 ranks on 2 shared cores got 1.5 %
of a core each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from harness.host.processes import Process

BUSY_SHARE: Final = 0.05
"""Share of one core from which on a process is busy; polling threads of an idle one use 1 %."""

_TICKS_PER_S: Final = 100  # USER_HZ, the same on every Linux that vLLM runs on.
T = TypeVar("T")


@dataclass(frozen=True)
class Vitals:
    """What one process has used so far.

    Attributes:
        core_s: CPU seconds that it used or waited for; its collected children's use included.
        storage: Bytes read from and written to storage, plus page faults that had to read.
    """

    core_s: float
    storage: int


@dataclass(frozen=True)
class DeviceReading:
    """One GPU at one moment.

    Attributes:
        used_bytes: Its used memory.
        busy_percent: Share of time in which a kernel ran; None where it is not known.
    """

    used_bytes: int
    busy_percent: int | None = None


Devices = Mapping[str, DeviceReading]


class DeviceProbe(Protocol):
    """Reads the GPUs that the engine may use."""

    def read(self) -> Devices | None:
        """Return one reading a GPU by its name; empty where there are none, None for unknown.

        It bounds its own time: a driver that hangs gives None within seconds. It is called
        from a thread, never twice at once.
        """


class NoDevices:
    """The probe of a machine whose engine uses no GPU."""

    def read(self) -> Devices | None:
        """Return nothing."""
        return {}


def vitals(process: Process, proc: Path = Path("/proc")) -> Vitals | None:
    """Read what a process has used; None when it is gone."""
    folder = proc / str(process.pid)
    try:
        text = (folder / "stat").read_bytes()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20 or int(fields[19]) != process.start:
        return None
    # Fields 14 to 17 of the manual: user, system, and both of collected children.
    ticks = sum(int(value) for value in fields[11:15])
    wanted_s = ticks / _TICKS_PER_S + _waited_s(folder)
    return Vitals(wanted_s, int(fields[9]) + _storage_bytes(folder))


def _waited_s(folder: Path) -> float:
    """Seconds in which its threads could have run and had no core; 0 where it is not told."""
    waited = 0
    for path in (folder / "task").glob("*/schedstat"):
        try:
            waited += int(path.read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return waited / 1e9


def _storage_bytes(folder: Path) -> int:
    try:
        lines = (folder / "io").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(": ", 1) for line in lines if ": " in line)
    return int(values.get("read_bytes", 0)) + int(values.get("write_bytes", 0))


@dataclass(frozen=True)
class Pulse:
    """All processes of an engine at one moment.

    Attributes:
        at: When, on the monotonic clock.
        of: What each process had used.
    """

    at: float
    of: Mapping[Process, Vitals]


def take(tree: Iterable[Process], now: float, proc: Path = Path("/proc")) -> Pulse:
    """Read a tree's processes; those that are gone are left out."""
    found = {process: vitals(process, proc) for process in tree}
    return Pulse(now, {process: seen for process, seen in found.items() if seen is not None})


def worked(before: Pulse, after: Pulse) -> bool:
    """Tell whether any process did anything between two pulses; a new one has."""
    seconds = max(after.at - before.at, 1e-6)
    for process, now in after.of.items():
        then = before.of.get(process)
        if then is None or now.storage > then.storage:
            return True
        if (now.core_s - then.core_s) / seconds >= BUSY_SHARE:
            return True
    return False


def devices_worked(before: Devices | None, after: Devices | None) -> bool | None:
    """Tell whether any GPU did anything between two readings; None where that is unknown."""
    if before is None or after is None:
        return None
    if any(reading.busy_percent for reading in after.values()):
        return True
    return {name: r.used_bytes for name, r in before.items()} != {
        name: r.used_bytes for name, r in after.items()
    }


class Later(Generic[T]):
    """Runs a function that may take seconds in a thread, so that the caller never waits.

    Args:
        function: What to run; a failure counts as no answer.
    """

    def __init__(self, function: Callable[[], T | None]) -> None:
        self._function = function
        self._answer: tuple[T | None] | None = None
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Begin, unless it runs already."""
        if self._thread is None or not self._thread.is_alive():
            self._answer = None
            self._thread = threading.Thread(target=self._run, name="harness-later", daemon=True)
            self._thread.start()

    def answered(self) -> bool:
        """Whether the last question has its answer."""
        return self._answer is not None

    def take(self) -> T | None:
        """Take the answer; None where there is none."""
        answer, self._answer = self._answer, None
        return answer[0] if answer is not None else None

    def _run(self) -> None:
        try:
            self._answer = (self._function(),)
        except Exception:  # a probe's failure is not the load's
            self._answer = (None,)
