"""How many GPUs this process may use, found without ever touching CUDA.

A CUDA context in the pytest process would hold device memory and break engines that fork, so
the answer comes from NVML, or from the driver's files where its Python binding is missing.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class GpuCount:
    """The GPUs of this machine, as far as a test run cares.

    Attributes:
        usable: How many this process may use.
        names: What they are, one entry a usable device; empty where only a count is known.
        reason: How it is known, or why there are none.
    """

    usable: int
    names: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        if not self.usable:
            return f"no usable GPU: {self.reason}"
        kinds = dict.fromkeys(self.names)
        what = ", ".join(f"{self.names.count(kind)} x {kind}" for kind in kinds)
        return f"{what or f'{self.usable} GPUs'} ({self.reason})"


def count_gpus(
    environment: Mapping[str, str] | None = None,
    *,
    driver: Path = _DRIVER,
    devices: Path = _DEVICES,
) -> GpuCount:
    """Count the usable GPUs.

    Args:
        environment: Where ``CUDA_VISIBLE_DEVICES`` is read; by default this process's own.
        driver: The driver's folder with one entry a GPU.
        devices: Folder of the device nodes; a container sees every GPU of its host in
            ``driver`` and only those that it was given here.
    """
    names, reason = _by_nvml()
    if names is None:
        names, reason = _by_driver(driver, devices)
    visible = (os.environ if environment is None else environment).get(_VISIBLE)
    if visible is None or not names:
        return GpuCount(len(names), tuple(filter(None, names)), reason)
    kept = _visible(names, visible)
    return GpuCount(len(kept), tuple(filter(None, kept)), f"{reason}, {_VISIBLE}={visible}")


def _by_nvml() -> tuple[list[str] | None, str]:
    """Return one name a device; None where the binding is missing."""
    try:
        with warnings.catch_warnings():
            # An older package of the same module name warns at import.
            warnings.simplefilter("ignore")
            nvml: Any = importlib.import_module("pynvml")
    except Exception:  # missing, or broken in any way: the driver's files still know
        return None, "no nvidia-ml-py"
    try:
        nvml.nvmlInit()
    except Exception as error:  # the binding's own error class cannot be named without it
        return [], f"NVML does not start: {error}"
    try:
        count = int(nvml.nvmlDeviceGetCount())
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        names = [_text(nvml.nvmlDeviceGetName(handle)) for handle in handles]
    except Exception as error:
        return [], f"NVML gives no list of devices: {error}"
    finally:
        nvml.nvmlShutdown()
    return names, f"NVML counts {count}"


def _by_driver(driver: Path, devices: Path) -> tuple[list[str], str]:
    known = len(list(driver.iterdir())) if driver.is_dir() else 0
    if not known:
        return [], f"nvidia-ml-py is not installed and {driver} holds no device"
    nodes = [node for node in devices.glob("nvidia*") if node.name[len("nvidia") :].isdecimal()]
    # A name would need the information file, whose form changes; the count is enough.
    return [""] * min(known, len(nodes)), f"the driver lists {known}, {len(nodes)} device nodes"


def _visible(names: list[str], visible: str) -> list[str]:
    """Apply ``CUDA_VISIBLE_DEVICES`` as CUDA does: the list ends at its first bad entry."""
    kept: list[str] = []
    seen: set[str] = set()
    for entry in (part.strip() for part in visible.split(",")):
        if entry in seen:
            return []  # CUDA sees no device at all when one is named twice
        seen.add(entry)
        if entry.isdecimal() and int(entry) < len(names):
            kept.append(names[int(entry)])
        elif entry.startswith(("GPU-", "MIG-")):
            kept.append("")  # by unique id: which one it is does not matter for the count
        else:
            break
    return kept


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name
