"""How many GPUs this process may use, found without ever touching CUDA, or NVML, here.

A CUDA context in the pytest process would hold device memory and break engines that fork, and a
driver in trouble hangs or crashes whoever asks it. So a child asks NVML, and where there is no
binding for that, the driver's files are counted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.preflight import _host, probe
from harness.preflight._visible import VARIABLE, resolve
from harness.preflight.facts import BEYOND, Census, Device, Problem

_WHOLE = ("handle", "device")
# No binding, driver not loaded, no library: as on a machine, or in a container, without GPUs.
_ABSENT = (BEYOND, 9, 12)


@dataclass(frozen=True)
class GpuCount:
    """The GPUs of this machine, as far as a test run cares.

    Attributes:
        usable: How many this process may use.
        names: What they are, one entry a usable device; empty where only a count is known.
        reason: How it is known, or why there are none.
        broken: There is a driver and it fails: a box that is meant to have GPUs.
    """

    usable: int
    names: tuple[str, ...]
    reason: str
    broken: bool = False

    def __str__(self) -> str:
        if not self.usable:
            return f"no usable GPU: {self.reason}"
        kinds = dict.fromkeys(self.names)
        what = ", ".join(f"{self.names.count(kind)} x {kind}" for kind in kinds)
        return f"{what or f'{self.usable} GPUs'} ({self.reason})"


def count_gpus(environment: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> GpuCount:
    """Count the usable GPUs.

    Args:
        environment: Where ``CUDA_VISIBLE_DEVICES`` is read; by default this process's own.
        root: Where ``proc`` and ``dev`` are.
    """
    own = os.environ if environment is None else environment
    found, reason = _known(probe.census(probe.Probe(brief=True)), root)
    text = own.get(VARIABLE)
    if text is not None and found.devices:
        reason += f", {VARIABLE}={text}"
    if text is not None and not any(device.uuid for device in found.devices):
        own = {**own, VARIABLE: _numbered(text)}
    usable = [target.device for target in resolve(found, own).targets if _answers(target.device)]
    names = tuple(device.name for device in usable if device.name)
    return GpuCount(len(usable), names, reason, broken=_broken(found))


def _known(found: Census, root: Path) -> tuple[Census, str]:
    failure = found.failure
    if failure is not None and failure.query == "binding":
        count = _host.driver_gpus(root)
        if not count:
            where = root / "proc/driver/nvidia/gpus"
            return found, f"nvidia-ml-py is not installed and {where} holds no device"
        # Names and ids would need the driver's information files, whose form changes.
        devices = tuple(Device(index) for index in range(count))
        return Census(count=count, devices=devices), f"no nvidia-ml-py; the driver shows {count}"
    if failure is not None:
        return found, f"NVML does not start: {failure.text}"
    if found.count is None:
        return found, f"NVML gives no list of devices: {found.broken or _said(found.problems)}"
    lost = [device for device in found.devices if not _answers(device)]
    told = [f"GPU {device.index}: {_said(device.problems)}" for device in lost]
    return found, "; ".join([f"NVML counts {found.count}", *told])


def _numbered(text: str) -> str:
    """Let each id stand for some device where no device tells its own: only the count matters."""
    entries = [entry.strip() for entry in text.split(",")]
    free = (str(n) for n in range(len(entries)) if str(n) not in entries)
    return ",".join(next(free) if e.startswith(("GPU-", "MIG-")) else e for e in entries)


def _broken(found: Census) -> bool:
    if found.failure is None:
        return found.count is None and not found.devices
    return found.failure.code not in _ABSENT


def _answers(device: Device) -> bool:
    return not any(problem.query in _WHOLE for problem in device.problems)


def _said(problems: tuple[Problem, ...]) -> str:
    return ", ".join(problem.text for problem in problems) or "it does not say why"
