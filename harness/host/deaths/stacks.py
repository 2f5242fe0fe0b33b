"""Native stacks of hung processes, where py-spy is installed; faulthandler's come without it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from harness.host.processes import Process

PROGRAM: Final = "py-spy"
_SECONDS = 5.0
_EACH_S = 2.0


def spy(processes: Iterable[Process], log: Path, seconds: float = _SECONDS) -> int:
    """Append py-spy's view of processes to a log.

    Args:
        processes: Whose stacks.
        log: Where they go.
        seconds: For all of them together; the rest is left out then.

    Returns:
        How many were asked; 0 without py-spy.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        return 0
    until = time.monotonic() + seconds
    asked = 0
    for process in processes:
        left = min(_EACH_S, until - time.monotonic())
        if left <= 0:
            break
        asked += 1
        try:
            with log.open("ab") as file:
                file.write(f"{PROGRAM} dump of {process.name} (pid {process.pid}):\n".encode())
                file.flush()
                subprocess.run(
                    [program, "dump", "--native", "--pid", str(process.pid)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    timeout=left,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired):
            continue
    return asked
