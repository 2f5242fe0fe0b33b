"""Who holds a device's memory: NVML's list, held against the processes that can be seen here.

NVML lists pids of the host. In a container such a pid means nothing, or another process; so a
process is only believed to be the holder where pids are the host's, or where it has the
device's file open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from harness.preflight.facts import Device, Holder

_VLLM_WORDS = ("VLLM::", "vllm")


@dataclass(frozen=True)
class ProcessFacts:
    """One process of this machine, or of this container.

    Attributes:
        pid: Its number here.
        start: Start time in clock ticks since boot; with the pid it names the process.
        user: Who runs it.
        command: Its command line, or its title.
        age: Seconds since its start.
        state: State letter of ``/proc/PID/stat``.
        parent: Pid of its parent.
        killed: A SIGKILL waits for it, so it is stuck in the kernel.
        opens_gpu: Whether it has a GPU's device file open; None where that may not be read.
        ours: The harness's own records name it.
    """

    pid: int
    start: int = 0
    user: str = "?"
    command: str = "?"
    age: float = 0.0
    state: str = "S"
    parent: int = 0
    killed: bool = False
    opens_gpu: bool | None = None
    ours: bool = False

    @property
    def vllm(self) -> bool:
        """Whether it is one of vLLM's, by its title or command line."""
        return any(word in self.command for word in _VLLM_WORDS)


class Processes(Protocol):
    """The processes that can be seen here."""

    @property
    def host(self) -> bool:
        """Whether pids here are the host's, so that NVML's pids mean these processes."""

    def find(self, pid: int) -> ProcessFacts | None:
        """Return the process with a pid."""

    def openers(self, minor: int) -> tuple[ProcessFacts, ...]:
        """Return the processes that have ``/dev/nvidiaMINOR`` open, as far as one may look."""


class OwnerKind(StrEnum):
    """How a holder was found out."""

    OURS = "ours"
    LIVE = "live"
    STUCK = "stuck"
    ZOMBIE = "zombie"
    VANISHED = "vanished"
    HIDDEN = "hidden"
    NONE = "none"


@dataclass(frozen=True)
class Owner:
    """One holder of a device's memory, as far as it is known.

    Attributes:
        kind: How it was found out.
        pid: As NVML lists it, or as it is here; None where there is none.
        facts: The process, where it can be seen.
        holder: NVML's entry, where there is one.
    """

    kind: OwnerKind
    pid: int | None = None
    facts: ProcessFacts | None = None
    holder: Holder | None = None

    @property
    def mps(self) -> bool:
        """Whether it holds memory through CUDA's multi-process service."""
        named = self.facts is not None and "nvidia-cuda-mps" in self.facts.command
        return named or (self.holder is not None and self.holder.kind == "mps")

    @property
    def computes(self) -> bool:
        """Whether it may use the device's cores for CUDA; a display server does not."""
        return self.holder is None or self.holder.kind != "graphics"


def owners(device: Device, processes: Processes, *, look_further: bool) -> tuple[Owner, ...]:
    """Return who holds a device.

    Args:
        device: The device.
        processes: Those that can be seen.
        look_further: Where NVML's list explains nothing, look who has the device's file open,
            which takes a moment on a busy machine.
    """
    found = tuple(_listed(device, processes))
    explained = any(owner.facts is not None for owner in found)
    if not look_further or explained or device.minor is None:
        return found
    seen = tuple(_owner(facts, None) for facts in processes.openers(device.minor))
    return seen or found


def _listed(device: Device, processes: Processes) -> Iterator[Owner]:
    for holder in device.holders:
        facts = processes.find(holder.pid)
        if processes.host:
            if facts is None:
                yield Owner(OwnerKind.VANISHED, holder.pid, None, holder)
            else:
                yield _owner(facts, holder)
        elif facts is not None and facts.opens_gpu:
            yield _owner(facts, holder)
        else:
            yield Owner(OwnerKind.HIDDEN, holder.pid, None, holder)


def _owner(facts: ProcessFacts, holder: Holder | None) -> Owner:
    if facts.state in "ZXx":
        kind = OwnerKind.ZOMBIE
    elif facts.killed:
        kind = OwnerKind.STUCK
    else:
        kind = OwnerKind.OURS if facts.ours else OwnerKind.LIVE
    return Owner(kind, facts.pid, facts, holder)


def sentence(owner: Owner, *, host: bool) -> str:
    """Say who it is."""
    facts = owner.facts
    if owner.kind is OwnerKind.VANISHED:
        return f"pid {owner.pid} is listed but has ended; the driver may still be clearing up"
    if owner.kind is OwnerKind.HIDDEN:
        return (
            f"pid {owner.pid} is the host's number of a process outside of this container, or of "
            "one that cannot be told from here"
        )
    if facts is None:
        where = "" if host else "; in a container that is usual, for the owner may be outside"
        return f"no visible owner{where}"
    said = f"pid {facts.pid} ({facts.user}): {facts.command}"
    if owner.kind is OwnerKind.OURS:
        return f"{said}; the harness started it"
    if owner.kind is OwnerKind.ZOMBIE:
        return f"{said}; it has ended, but its parent {facts.parent} has not collected it"
    if owner.kind is OwnerKind.STUCK:
        return f"{said}; it was killed already and is stuck in the driver"
    if owner.mps:
        return f"{said}; it holds the device through CUDA's multi-process service (MPS)"
    if not facts.vllm and owner.computes:
        return f"{said}; not vLLM: it may hold memory of an engine that has ended (CUDA IPC)"
    return said


def remedy(owner: Owner, device: Device, *, host: bool) -> str:
    """Say what to run next; nothing that ends a process without the user's own word."""
    index = device.index
    if owner.kind is OwnerKind.OURS:
        return "harness reclaim"
    if owner.kind is OwnerKind.VANISHED:
        return "harness preflight --wait 30"
    if owner.kind is OwnerKind.HIDDEN or (owner.facts is None and not host):
        return f"on the host: nvidia-smi -i {index}, then end the process there"
    if owner.facts is None:
        return f"sudo fuser -v /dev/nvidia{device.minor if device.minor is not None else index}"
    if owner.kind is OwnerKind.STUCK:
        return f"needs an operator: sudo nvidia-smi --gpu-reset -i {index}, or a reboot"
    if owner.kind is OwnerKind.ZOMBIE:
        return f"end its parent: harness reclaim --pid {owner.facts.parent}"
    if owner.mps:
        return "echo quit | nvidia-cuda-mps-control, when its clients have ended"
    return f"harness reclaim --pid {owner.facts.pid}"
