"""What reclaim would do, decided before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harness.errors import Refused, UsageError
from harness.host.processes import Process
from harness.reclaim.find import Found, Standing, ancestors

_KERNEL = "kthreadd"
_INIT = 1


class Action(StrEnum):
    """What is done about something that was found."""

    END = "end"
    """End its processes, then remove what they left."""
    FORGET = "forget"
    """Remove the record and what is left on disk; nothing runs."""
    LEAVE = "leave"
    """Do nothing."""


@dataclass(frozen=True)
class Step:
    """One thing to do, or to leave alone.

    Attributes:
        action: What.
        processes: Whom it concerns.
        why: Why, in one line.
        engine: The engine; None for a stranger that the user named.
    """

    action: Action
    processes: tuple[Process, ...]
    why: str
    engine: Found | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the step as a JSON object."""
        return {
            "action": str(self.action),
            "why": self.why,
            "processes": [process.to_json() for process in self.processes],
            "engine": self.engine and self.engine.to_json(),
        }


def plan(found: Iterable[Found]) -> tuple[Step, ...]:
    """Decide about all that was found, where nobody was named."""
    return tuple(_step(engine) for engine in found)


def _step(engine: Found) -> Step:
    record, owner = engine.record, engine.owner
    who = f"its owner (pid {owner.pid})" if owner else "its owner"
    if engine.standing is Standing.ORPHAN:
        return Step(Action.END, engine.processes, f"{who} is gone", engine)
    if engine.standing is Standing.STALE:
        return Step(Action.FORGET, (), f"{who} is gone and nothing of it runs", engine)
    if engine.standing is Standing.LIVE:
        first = engine.processes[0].pid if engine.processes else 0
        why = f"{who} runs" + (f"; end it all the same with --pid {first}" if first else "")
        return Step(Action.LEAVE, engine.processes, why, engine)
    if engine.standing is Standing.ELSEWHERE and record is not None:
        where = f"it was started on {record.machine.host}"
        return Step(Action.LEAVE, (), f"{where}, in another container or machine", engine)
    return Step(Action.LEAVE, (), f"{engine.path} is of an unknown form", engine)


def plan_for(
    target: Target, found: Iterable[Found], everything: Sequence[Process], *, me: int
) -> tuple[Step, ...]:
    """Decide about one process that the user named.

    A process of an engine that the harness started stands for that whole engine, also while its
    owner runs. Any other one stands for itself alone: not for its children, not for its group.

    Args:
        target: Whom the user named.
        found: The engines.
        everything: All processes.
        me: This process.

    Raises:
        Refused: ``reclaim.no-process``: nothing of that pid runs. ``reclaim.other-process``: the
            pid belongs to another process by now. ``reclaim.protected``: ending it would end
            this command, the system, or nothing at all.
    """
    by_pid = {process.pid: process for process in everything if not process.ended}
    process = by_pid.get(target.pid)
    if process is None:
        raise _refused("reclaim.no-process", "a running process", "none", target)
    if target.start is not None and process.start != target.start:
        expected = f"the process that started at {target.start} ticks after boot"
        found_now = f"{process.name}, started at {process.start}: the pid was given out again"
        raise _refused("reclaim.other-process", expected, found_now, target)
    above = ancestors(me, by_pid)
    parent = by_pid.get(process.parent)
    kernel = _KERNEL in (process.name, parent and parent.name)
    if process.pid == _INIT or kernel or process.pid in (me, *above):
        what = "a kernel thread" if kernel else "init, this command or what it runs in"
        raise _refused("reclaim.protected", "a process that may be ended", what, target)
    for engine in found:
        if process in engine.processes:
            why = f"pid {process.pid}, which was named, belongs to it"
            return (Step(Action.END, engine.processes, why, engine),)
    return (Step(Action.END, (process,), "it was named; it is not the harness's own"),)


@dataclass(frozen=True)
class Target:
    """A process that the user named.

    Attributes:
        pid: Its number.
        start: Its start time in clock ticks since boot, as a dry run printed it; None: whoever
            has that pid now.
    """

    pid: int
    start: int | None = None

    @staticmethod
    def parse(text: str) -> Target:
        """Read ``PID`` or ``PID:START``.

        Raises:
            UsageError: ``reclaim.bad-pid``.
        """
        pid, colon, start = text.strip().partition(":")
        if not pid.isdecimal() or int(pid) < 1 or (colon and not start.isdecimal()):
            raise UsageError(
                "reclaim.bad-pid",
                expected="PID, or PID:START as a dry run prints it",
                found=repr(text),
                where="--pid",
                next="harness reclaim, without --pid, shows what it would end",
            )
        return Target(int(pid), int(start) if colon else None)

    def __str__(self) -> str:
        return f"{self.pid}" if self.start is None else f"{self.pid}:{self.start}"


def _refused(id: str, expected: str, found: str, target: Target) -> Refused:
    return Refused(
        id,
        expected=expected,
        found=found,
        where=f"--pid {target}",
        next="look at the processes with ps, and name the right one",
    )
