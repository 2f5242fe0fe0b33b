"""Who watches an engine while it loads and works: made from its plan."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import models
from harness.errors import HarnessError
from harness.extraction.plan import EnginePlan
from harness.gpu_lock import gpus_of
from harness.host.supervision.loads import LoadKind
from harness.host.supervision.policy import Supervision
from harness.host.supervision.pulse import DeviceReading, Devices, NoDevices
from harness.host.supervision.supervisor import Supervisor
from harness.preflight import Device, Probe, Reader, census

_ALL = "all"


def supervisor_of(plan: EnginePlan, supervision: Supervision) -> Supervisor:
    """Make the supervisor of an engine that is loaded as planned."""
    on_gpus = plan.seen.platform.device == "cuda"
    gpus = gpus_of({**os.environ, **plan.recipe.env}) if on_gpus else ()
    return Supervisor(
        supervision,
        kind=load_kind(plan),
        devices=NvmlDevices(gpus) if on_gpus else NoDevices(),
    )


def load_kind(plan: EnginePlan) -> LoadKind:
    """Return what makes two loads take about the same time."""
    path = plan.options.model
    name = str(path)
    with contextlib.suppress(HarnessError, OSError):
        name = models.fingerprint(path)
    facts: dict[str, Any] = {
        "model": name,
        "path": str(path.absolute()),
        "vllm": str(plan.seen.engine.vllm),
        "device": plan.seen.platform.device,
        "capture": plan.session.name,
        "dtype": plan.dtype,
        "tensor_parallel_size": plan.options.tensor_parallel_size,
    }
    return LoadKind(facts, _bytes(path))


def _bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    except OSError:
        return 0


@dataclass(frozen=True)
class NvmlDevices:
    """Reads the GPUs of one engine through NVML, in a child with a deadline.

    Attributes:
        names: Uuids or indexes of the engine's GPUs; ``all`` for every one.
        reader: Asks NVML.
        probe: How.
    """

    names: tuple[str, ...]
    reader: Reader = census
    probe: Probe = field(default_factory=lambda: Probe(samples=1, settle=0.0, cuda=False))

    def read(self) -> Devices | None:
        """Return used memory and load of each GPU; None where one does not answer."""
        found: Mapping[str, Device] = {
            f"GPU {device.index}": device
            for device in self.reader(self.probe).devices
            if _ALL in self.names or {device.uuid, str(device.index)} & set(self.names)
        }
        readings = {
            name: DeviceReading(device.memory.used, device.health.busy)
            for name, device in found.items()
            if device.memory is not None
        }
        return readings if readings and len(readings) == len(found) else None
