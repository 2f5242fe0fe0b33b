"""After an engine was killed: wait until its GPUs' memory is back, and say so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from harness.host.supervision.pulse import DeviceProbe, Devices, Later

MIB: Final = 2**20

SLACK: Final = 256 * MIB
"""What a GPU may hold more than before: contexts of others come and go."""

DEADLINE_S: Final = 60.0
"""The driver gives memory back some seconds after a process has ended (vllm#57362)."""

_PAUSE_S = 0.5


class DeviceMemory:
    """Used memory of the GPUs before an engine, and after it.

    Args:
        probe: Reads them.
        deadline_s: Seconds to wait for the memory.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(
        self,
        probe: DeviceProbe,
        *,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._probe = probe
        self._before: Later[Devices] = Later(probe.read)
        self._deadline_s, self._clock, self._sleep = deadline_s, clock, sleep

    def note(self) -> None:
        """Read them before the engine uses them, without waiting for the answer."""
        self._before.ask()

    def wait_until_back(self) -> str:
        """Wait until each GPU is back where it was; what was found, in words.

        Empty where there are no GPUs.
        """
        before = self._before.take()
        if before is not None and not before:
            return ""
        begun = self._clock()
        while True:
            now = self._probe.read()
            seconds = self._clock() - begun
            if now is None or before is None:
                return "whether the GPUs' memory is back is unknown; next: harness preflight"
            held = {
                name: reading.used_bytes
                for name, reading in now.items()
                if reading.used_bytes > _before(before, name) + SLACK
            }
            if not held:
                return f"the GPUs' memory is back after {seconds:.1f} s"
            if seconds >= self._deadline_s:
                shown = ", ".join(f"{n} {used / MIB:,.0f} MiB" for n, used in held.items())
                return f"after {seconds:.0f} s memory is still held: {shown}; next: harness reclaim"
            self._sleep(_PAUSE_S)


def _before(devices: Devices, name: str) -> int:
    reading = devices.get(name)
    return 0 if reading is None else reading.used_bytes
