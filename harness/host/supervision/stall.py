"""Has the engine stopped moving? Joins log, processes and GPUs into one answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.host.processes import Process
from harness.host.supervision import pulse
from harness.host.supervision.loads import clock
from harness.host.supervision.pulse import DeviceProbe, Devices, Later, Pulse

_DEVICE_ANSWER_S = 15.0


@dataclass(frozen=True)
class Stall:
    """No sign of life for too long.

    Attributes:
        text: How long, in words.
        proved: Whether the GPUs were seen idle, too; without that it is only a suspicion.
    """

    text: str
    proved: bool


class Stillness:
    """Counts the seconds without a sign of life.

    GPUs are asked only after half of that time, in a thread, since a driver may be slow.

    Args:
        devices: Reads the GPUs.
        stall_s: Seconds that are a stall.
    """

    def __init__(self, devices: DeviceProbe, stall_s: float) -> None:
        self._stall_s = stall_s
        self._later: Later[Devices] = Later(devices.read)
        self._asked = False
        self._sign_at = 0.0
        self._pulse: Pulse | None = None
        self._readings: list[Devices | None] = []

    def restart(self, now: float) -> None:
        """Begin to count; what was before does not matter."""
        self._pulse = None
        self.sign(now)

    def sign(self, now: float) -> None:
        """Something moved."""
        self._sign_at = now
        self._readings = []

    def look(self, tree: Iterable[Process], now: float) -> Stall | None:
        """Look at the processes, and after half of the time at the GPUs."""
        before, self._pulse = self._pulse, pulse.take(tree, now)
        # A tree that cannot be seen proves nothing.
        if before is None or not self._pulse.of or pulse.worked(before, self._pulse):
            self.sign(now)
            return None
        still = now - self._sign_at
        if still < self._stall_s / 2:
            return None
        self._look_at_devices(now)
        still = now - self._sign_at
        if still < self._stall_s:
            return None
        if len(self._readings) < 2 and still < self._stall_s + _DEVICE_ANSWER_S:
            return None  # An answer is on its way.
        known = len(self._readings) >= 2 and None not in self._readings
        unknown = "" if known else "; what the GPUs do is unknown"
        return Stall(f"no sign of life for {clock(still)}{unknown}", proved=known)

    def _look_at_devices(self, now: float) -> None:
        if not self._asked:
            self._asked = True
            self._later.ask()
            return
        if not self._later.answered():
            return
        self._asked = False
        reading = self._later.take()
        if (self._readings and pulse.devices_worked(self._readings[-1], reading)) or (
            reading and any(device.busy_percent for device in reading.values())
        ):
            self.sign(now)
        else:
            self._readings.append(reading)
