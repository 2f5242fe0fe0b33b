"""Looks before the first test that needs an engine or a GPU, and again at the session's end."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.reclaim.leaks import LeakCheck

SETTLE_S = 2.0
"""Seconds for what is just ending."""

MEMORY_S = 60.0
"""Seconds for device memory to come back: the driver gives it back after a process's end."""


class LeakWatch:
    """The leak check of one session; does nothing in a session without engines and GPUs.

    Attributes:
        found: What was left, each in one line with the next step.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._check: LeakCheck | None = None
        self._handled = False

    def begin(self, *, gpus: bool) -> None:
        """Look at what is here before.

        Args:
            gpus: Whether device memory is looked at; it costs some tenths of a second.
        """
        if self._check is not None:
            return
        from harness.host import processes
        from harness.reclaim.leaks import LeakCheck
        from harness.reclaim.memory import NoGpus
        from harness.reclaim.meters import meter_of_this_machine
        from harness.reclaim.system import Linux

        me = processes.read(os.getpid())
        if me is None:
            return  # no /proc: the host refuses to start an engine here as well
        meter = meter_of_this_machine() if gpus else NoGpus()
        self._check = LeakCheck(Linux(), meter, me, os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._unwind_on_sigterm()

    def finish(self) -> None:
        """Look again; every engine of the session must be gone by now."""
        if self._check is not None:
            left = self._check.leaks(settle_s=SETTLE_S, memory_s=MEMORY_S)
            self.found = [str(leak) for leak in left]
            self._check = None
        if self._handled:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._handled = False

    def _unwind_on_sigterm(self) -> None:
        """Let a batch system's SIGTERM end the session as Ctrl-C does: engine, report and all.

        A handler that somebody else has set is left alone.
        """
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _interrupt)
            self._handled = True


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt("SIGTERM")
