"""A meter that asks NVML, in a child process with a deadline."""

from __future__ import annotations

from collections.abc import Callable

from harness.preflight.facts import Census
from harness.preflight.probe import Probe, census
from harness.reclaim.memory import DeviceUse, Holder, Reading


class Nvml:
    """Asks through :mod:`harness.preflight`, whose child may hang or crash as it likes."""

    def __init__(self, reader: Callable[[Probe], Census] = census) -> None:
        self._reader = reader

    def read(self) -> Reading | None:
        """Return the use of every device; None where a device, or NVML, does not answer."""
        found = self._reader(Probe(samples=1, cuda=False))
        deaf = any(device.memory is None for device in found.devices)
        if found.failure is not None or found.broken or deaf:
            return None
        return tuple(
            DeviceUse(
                device.index,
                device.memory.used,
                device.uuid,
                tuple(Holder(holder.pid, holder.used) for holder in device.holders),
            )
            for device in found.devices
            if device.memory is not None
        )
