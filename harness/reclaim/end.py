"""Carry out a plan: politely, then hard, then wait for device memory, and say what is left."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from harness import state
from harness.host.ending.kill import kill_all
from harness.host.leftovers import shared
from harness.host.leftovers.private import left_on_disk, remove_folder
from harness.host.processes import Process
from harness.reclaim.find import Found, still_running
from harness.reclaim.memory import Cause, Held, Meter, Reading, chosen, held
from harness.reclaim.plan import Action, Step
from harness.reclaim.system import System

POLITE_S: Final = 5.0
"""Seconds between SIGTERM and SIGKILL: enough for an engine's own orderly end."""

KILL_S: Final = 5.0
"""Seconds for SIGKILL to work. A process that spins inside the driver never ends on it (vLLM
issue 25127), so there is a limit and a verdict, and no loop."""

MEMORY_S: Final = 60.0
"""Seconds for device memory: the driver gives it back some seconds after the process's end."""

_PAUSE_S = 0.05
_POLL_S = 0.5


@dataclass(frozen=True)
class Survivor:
    """A process that did not end on SIGKILL."""

    process: Process
    state: str

    def __str__(self) -> str:
        return f"{self.process.name} (pid {self.process.pid}, state {self.state})"


@dataclass(frozen=True)
class Result:
    """What became of one step.

    Attributes:
        step: What was to be done.
        ended: Processes that were ended.
        survivors: Those that could not be.
        denied: Those that may not be signalled: another user's.
        held: Device memory that did not come back.
        removed: Files and folders that were removed.
        seconds: How long it took.
    """

    step: Step
    ended: tuple[Process, ...] = ()
    survivors: tuple[Survivor, ...] = ()
    denied: tuple[Process, ...] = ()
    held: tuple[Held, ...] = ()
    removed: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether nothing is left."""
        return not (self.survivors or self.denied or self.held)

    def problems(self) -> list[tuple[str, str]]:
        """Return each thing that could not be freed, with the next step."""
        found = [
            (
                f"{survivor} does not end on SIGKILL",
                "it hangs in the kernel or the driver: an operator must look, perhaps reboot",
            )
            for survivor in self.survivors
        ]
        found += [
            (f"{p.name} (pid {p.pid}) may not be signalled", "run this as its user, or as root")
            for p in self.denied
        ]
        return found + [(str(held), held.next) for held in self.held]

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {
            **self.step.to_json(),
            "ended": [process.to_json() for process in self.ended],
            "survivors": [{**s.process.to_json(), "state": s.state} for s in self.survivors],
            "denied": [process.to_json() for process in self.denied],
            "held": [held.to_json() for held in self.held],
            "removed": list(self.removed),
            "problems": [{"found": text, "next": next} for text, next in self.problems()],
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Patience:
    """Limits in seconds."""

    polite: float = POLITE_S
    kill: float = KILL_S
    memory: float = MEMORY_S


@dataclass
class Reclaimer:
    """Does what a plan says.

    Args:
        system: The machine.
        meter: Tells the use of device memory.
        me: This process.
        patience: Limits.
        on_step: Hears of each step before it begins.
    """

    system: System
    meter: Meter
    me: int
    patience: Patience = field(default_factory=Patience)
    on_step: Callable[[Step], None] = lambda step: None

    def carry_out(self, steps: Iterable[Step]) -> list[Result]:
        """Carry out the steps, one after the other; those that leave something alone too."""
        return [self._do(step) for step in steps]

    def _do(self, step: Step) -> Result:
        if step.action is Action.LEAVE:
            return Result(step)
        self.on_step(step)
        begun = self.system.clock()
        before = self.meter.read()
        left: list[Process] = []
        if step.action is Action.END:
            left = self._end(step)
        now = {process.pid: process for process in self.system.everything()}
        survivors = tuple(Survivor(p, now[p.pid].state) for p in left if p.pid in now)
        gone = tuple(process for process in step.processes if process not in left)
        denied = tuple(s.process for s in survivors if not self._may_signal(s.process))
        # What still runs holds its memory: no use to wait for it.
        waited = self._wait_for_memory(step, before, 0.0 if survivors else self.patience.memory)
        return Result(
            step=step,
            ended=gone,
            survivors=tuple(s for s in survivors if s.process not in denied),
            denied=denied,
            held=tuple(waited),
            removed=tuple(self._clean_up(step.engine)) if not survivors else (),
            seconds=self.system.clock() - begun,
        )

    def _end(self, step: Step) -> list[Process]:
        """End the processes of a step; what is left."""
        told: set[Process] = set()
        until = self.system.clock() + self.patience.polite
        while (live := self._live(step)) and self.system.clock() < until:
            for process in live:
                if process not in told:
                    told.add(process)
                    self.system.send(process, signal.SIGTERM)
            self.system.sleep(_PAUSE_S)
        return kill_all(
            lambda: self._live(step),
            seconds=self.patience.kill,
            send=self.system.send,
            keeps=self.system.keeps,
            clock=self.system.clock,
            sleep=self.system.sleep,
        )

    def _live(self, step: Step) -> list[Process]:
        if step.engine is not None:
            # Again from the start: it may have started others meanwhile.
            return still_running(self.system, step.engine, me=self.me)
        running = {process for process in self.system.everything() if not process.ended}
        return [process for process in step.processes if process in running]

    def _may_signal(self, process: Process) -> bool:
        return self.system.send(process, 0)

    def _wait_for_memory(self, step: Step, before: Reading | None, seconds: float) -> list[Held]:
        """Wait until what the step held is given back; what is not, at the deadline."""
        pids = [process.pid for process in step.processes]
        until = self.system.clock() + seconds
        while True:
            now = self.meter.read()
            if now == ():
                return []
            if now is None:
                found = [Held(-1, 0, 0, Cause.UNKNOWN)]
            else:
                devices = _concerned(step, before, now)
                found = held(now, devices=devices, ours=pids, runs=self._runs(step.processes))
            if not found or self.system.clock() >= until:
                return found
            self.system.sleep(_POLL_S)

    def _runs(self, known: Sequence[Process]) -> Callable[[int], bool]:
        live = {p.pid for p in self.system.everything() if not p.ended and p in known}
        return lambda pid: pid in live

    def _clean_up(self, engine: Found | None) -> list[str]:
        """Remove what a dead engine left on disk and in shared memory, then its record."""
        record = engine.record if engine is not None else None
        if engine is None or record is None:
            return []
        removed = []
        folder = Path(record.folder)
        segments = set(left_on_disk(folder)[1]) & set(shared.present())
        if segments:
            in_use = shared.used_by(process.pid for process in self.system.everything())
            removed += [str(shared.FOLDER / n) for n in shared.remove(segments, in_use=in_use)]
        if remove_folder(folder):
            removed.append(str(folder))
        if engine.path is not None:
            state.drop_record(engine.path)
            removed.append(str(engine.path))
        return removed


def _concerned(step: Step, before: Reading | None, now: Reading) -> set[int]:
    """Return the devices that a step's processes used.

    Those where the driver listed one of them; where it lists nobody (in a container), those that
    the engine could see.
    """
    pids = {process.pid for process in step.processes}
    earlier = before or ()
    listed = {d.index for d in earlier for holder in d.holders if holder.pid in pids}
    record = step.engine.record if step.engine else None
    if listed or record is None:
        return listed
    return chosen(now, record.devices)
