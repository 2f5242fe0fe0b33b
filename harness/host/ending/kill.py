"""End processes for good: SIGKILL until none is found, Python's resource trackers last."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable

from harness.host import processes
from harness.host.processes import Process

_KEEPER_S = 3.0  # It ends within milliseconds, on a busy machine within a second.
_PAUSE_S = 0.02


def kill_all(
    find: Callable[[], Iterable[Process]],
    *,
    seconds: float,
    send: Callable[[Process, int], bool] = processes.send,
    keeps: Callable[[Process], bool] = processes.keeps,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Process]:
    """SIGKILL what ``find`` finds, again and again, until it finds nothing.

    A resource tracker is left three seconds after all others are gone: it then removes their
    shared memory and ends by itself.

    Args:
        find: Returns what still runs.
        seconds: How long to try; a process that hangs in the kernel does not end on SIGKILL.
        send: Sends a signal to a process.
        keeps: Tells a resource tracker.
        clock: Monotonic seconds.
        sleep: Waits.

    Returns:
        What still runs after that time.
    """
    deadline = clock() + seconds
    others_gone_at: float | None = None
    while live := list(find()):
        now = clock()
        if now > deadline:
            return live
        others = [process for process in live if not keeps(process)]
        if others:
            others_gone_at = None
        elif others_gone_at is None:
            others_gone_at = now
        late = others_gone_at is not None and now > others_gone_at + _KEEPER_S
        for process in live if late else others:
            send(process, signal.SIGKILL)
        sleep(_PAUSE_S)
    return []
