"""Which meter of device memory fits this machine."""

from __future__ import annotations

from pathlib import Path

from harness.reclaim.memory import Meter, NoGpus

_DRIVER = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"))


def meter_of_this_machine() -> Meter:
    """Return NVML's meter where there is a driver, else one of a machine without GPUs."""
    if not any(path.exists() for path in _DRIVER):
        return NoGpus()
    from harness.reclaim.nvml import Nvml

    return Nvml()
