"""One program in a process group of its own, which is gone when this returns."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# What `timeout` returns for a program that it had to end.
TIMED_OUT = 124
# pytest writes its report on SIGINT; an engine that is loading may not listen.
GRACE = 20.0
_SHORT_GRACE = 5.0
_POLL, _POLLS = 0.02, 100


def run(
    command: Sequence[str],
    *,
    output: Path,
    until: float,
    cwd: Path,
    env: Mapping[str, str],
    grace: float = GRACE,
) -> int:
    """Run a program until it ends or the clock reads ``until``.

    Its whole group is ended in any case: by SIGINT first when its time is over, and by SIGKILL
    for what is left, also when it ended by itself or this was interrupted.

    Args:
        command: The program and its arguments.
        output: File for all it prints.
        until: On the clock of ``time.monotonic``.
        cwd: Where it runs.
        env: Its whole environment.
        grace: Seconds from SIGINT to SIGKILL.

    Returns:
        Its exit code, ``TIMED_OUT`` when its time was over, 128 + signal when a signal ended it.
    """
    with output.open("wb") as sink:
        program = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        try:
            code = program.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _interrupt(program, grace)
            return TIMED_OUT
        except BaseException:
            # Whoever stops this may not wait long, and what there is has still to be bundled.
            _interrupt(program, min(grace, _SHORT_GRACE))
            raise
        return code if code >= 0 else 128 - code
    finally:
        _end_group(program)


def _interrupt(program: subprocess.Popen[bytes], grace: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(timeout=grace)


def _end_group(program: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a group and wait, a little, until it is gone."""
    for _ in range(_POLLS):
        try:
            os.killpg(program.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            break
        program.poll()  # a dead leader keeps its group until somebody asks for it
        time.sleep(_POLL)
    program.wait()
