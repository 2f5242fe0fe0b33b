"""Device memory: whether it came back, and if not, what holds it.

Pure: a meter tells what is used now, everything here only compares. Device memory is the verdict;
the process list explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

SLACK: Final = 256 << 20
"""Bytes above the baseline that still count as back: the driver keeps some of what it once
gave, and a monitor may come and go."""


@dataclass(frozen=True)
class Holder:
    """A process that the driver lists on a device.

    Attributes:
        pid: Its pid; inside a container perhaps one of the host's.
        used: Bytes; None where the driver does not tell.
    """

    pid: int
    used: int | None = None


@dataclass(frozen=True)
class DeviceUse:
    """What one visible device holds at one moment.

    Attributes:
        index: The driver's number.
        uuid: Its unique id; empty where not known.
        used: Bytes that are allocated, without what the driver reserves.
        holders: Who is listed on it.
    """

    index: int
    used: int
    uuid: str = ""
    holders: tuple[Holder, ...] = ()


Reading = tuple[DeviceUse, ...]


class Meter(Protocol):
    """Whoever can tell how much memory each visible device uses."""

    def read(self) -> Reading | None:
        """Return the use of every device now; None where it cannot be told in time.

        A machine without GPUs has none to tell of: an empty tuple.
        """


class NoGpus:
    """The meter of a machine without GPUs."""

    def read(self) -> Reading | None:
        """Return that there is no device."""
        return ()


class Cause(StrEnum):
    """Why memory did not come back."""

    ALIVE = "subprocess still alive"
    REFERENCED = "still referenced by another process"
    BELOW = "held below the runtime"
    UNKNOWN = "it cannot be told how much is used"


_NEXT = {
    Cause.ALIVE: "wait, or let an operator look: on SIGKILL it does not end",
    Cause.REFERENCED: "end that process, if it is yours: harness reclaim --pid {pid}",
    Cause.BELOW: "no process that can be seen holds it: look from outside of the container, "
    "then at the driver (nvidia-smi -q); a reset of the device is an operator's decision",
    Cause.UNKNOWN: "ask nvidia-smi; the driver gave no answer here",
}


@dataclass(frozen=True)
class Held:
    """Memory of one device that did not come back.

    Attributes:
        index: The device; -1 where no device could be asked.
        used: Bytes used now.
        baseline: Bytes that were expected at most, without the slack.
        cause: Why.
        pids: Processes that explain it.
    """

    index: int
    used: int
    baseline: int
    cause: Cause
    pids: tuple[int, ...] = ()

    @property
    def next(self) -> str:
        """The next step for the user."""
        return _NEXT[self.cause].format(pid=self.pids[0] if self.pids else "PID")

    def __str__(self) -> str:
        if self.cause is Cause.UNKNOWN:
            return f"device memory: {self.cause}"
        who = f" (pid {', '.join(map(str, self.pids))})" if self.pids else ""
        over = self.used - self.baseline
        return (
            f"device {self.index}: {_mib(self.used)} used, {_mib(over)} above what it should be: "
            f"{self.cause}{who}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "device": self.index,
            "used": self.used,
            "baseline": self.baseline,
            "cause": str(self.cause),
            "pids": list(self.pids),
            "next": self.next,
        }


def held(
    now: Reading,
    *,
    baseline: Mapping[int, int] | None = None,
    devices: Iterable[int] | None = None,
    ours: Sequence[int] = (),
    runs: Callable[[int], bool] = lambda pid: False,
) -> list[Held]:
    """Return what did not come back.

    Args:
        now: What the devices hold.
        baseline: Bytes used before the engine, by device; by default what the other listed
            processes hold, so that an empty device is expected where nobody else is.
        devices: Which devices concern us; by default all.
        ours: Pids of the engine, whether they run or not.
        runs: Tells whether a pid runs here.
    """
    wanted = None if devices is None else set(devices)
    found = []
    for device in now:
        if wanted is not None and device.index not in wanted:
            continue
        others = [holder for holder in device.holders if holder.pid not in ours]
        usual = sum(holder.used or 0 for holder in others)
        if baseline is not None:
            # Whoever came meanwhile and is listed is not what we have left.
            usual = max(usual, baseline.get(device.index, 0))
        if device.used > usual + SLACK:
            found.append(_explain(device, usual, ours, others, runs))
    return found


def _explain(
    device: DeviceUse,
    usual: int,
    ours: Sequence[int],
    others: Sequence[Holder],
    runs: Callable[[int], bool],
) -> Held:
    listed = {holder.pid for holder in device.holders}
    alive = tuple(pid for pid in ours if pid in listed or runs(pid))
    if alive:
        return Held(device.index, device.used, usual, Cause.ALIVE, alive)
    # Whoever maps our memory (CUDA IPC, an MPS server) is listed, and a pid of the host's
    # table means nothing here: it is told, and never signalled for it.
    pids = tuple(holder.pid for holder in others)
    cause = Cause.REFERENCED if pids else Cause.BELOW
    return Held(device.index, device.used, usual, cause, pids)


def used(reading: Reading) -> dict[int, int]:
    """Return the used bytes by device, as a baseline for later."""
    return {device.index: device.used for device in reading}


def chosen(reading: Reading, visible: str | None) -> set[int]:
    """Return which devices ``CUDA_VISIBLE_DEVICES`` names; all where it is not set."""
    if visible is None:
        return {device.index for device in reading}
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    return {
        device.index
        for device in reading
        for entry in entries
        if entry == str(device.index) or (device.uuid and device.uuid.startswith(entry))
    }


def _mib(size: int) -> str:
    return f"{size >> 20:,} MiB"
