"""What a check is: an id, a threshold with its reason, and a pure function over the scene."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from harness.preflight._host import HostFacts
from harness.preflight._owners import Owner, Processes, owners
from harness.preflight._visible import Target, Visible
from harness.preflight.facts import Census, Device
from harness.preflight.need import Need
from harness.preflight.probe import FLOOR
from harness.preflight.verdict import Finding


@dataclass(frozen=True)
class Scene:
    """All facts that verdicts are made of.

    Attributes:
        census: What NVML said.
        visible: What an engine would see of it.
        processes: Who may hold memory.
        host: The machine around.
        need: What the engine will need.
    """

    census: Census
    visible: Visible
    processes: Processes
    host: HostFacts
    need: Need

    @property
    def targets(self) -> tuple[Target, ...]:
        """The devices that the engine would use: vLLM takes the first of the visible ones."""
        return self.visible.targets[: self.need.devices]

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The GPUs of the targets, each once."""
        return tuple({target.device.index: target.device for target in self.targets}.values())

    @cached_property
    def owners(self) -> dict[int, tuple[Owner, ...]]:
        """Holders of each device, by index."""
        return {
            device.index: owners(device, self.processes, look_further=_holds(device))
            for device in self.census.devices
        }


Judge = Callable[[Scene], Iterator[Finding]]


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: Stable; ``family.name``. It is also the switch: ``--skip ID``, or the family.
        what: What is looked at.
        threshold: What passes.
        reason: Why that threshold.
        judge: Yields what is wrong, or worth knowing.
    """

    id: str
    what: str
    threshold: str
    reason: str
    judge: Judge

    @property
    def family(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0]


def _holds(device: Device) -> bool:
    return device.memory is None or device.memory.used > FLOOR


def size(count: float) -> str:
    """Return bytes as a person reads them: MiB as in nvidia-smi, GiB from a million MiB on."""
    mib = count / (1 << 20)
    return f"{mib:,.0f} MiB" if mib < 1e6 else f"{mib / 1024:,.0f} GiB"
