"""Whether a session has left anything of ours: looked at before it, and again after it.

Only what can be laid at this process's door counts: processes that carry its mark, engines, private
folders and shared memory of which it knows that they are its own, locks it holds. Other sessions
of this user may run at the same time, and what they do is none of ours. Device memory has no name
on it: it must be back to what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from harness import gpu_lock
from harness.host.leftovers import private, record, shared
from harness.host.processes import Process, below
from harness.reclaim.find import find
from harness.reclaim.memory import SLACK, Meter, chosen, held, used
from harness.reclaim.system import System

_PAUSE_S = 0.05
_POLL_S = 0.5
_TITLE = "VLLM::"
_RECLAIM = "harness reclaim, then with --yes"


@dataclass(frozen=True)
class Leak:
    """One thing that is still there.

    Attributes:
        kind: ``process``, ``engine``, ``folder``, ``shared memory``, ``lock`` or ``device memory``.
        what: Which one, in words.
        next: The next step for the user.
    """

    kind: str
    what: str
    next: str

    def __str__(self) -> str:
        return f"left behind: {self.kind}: {self.what}; next: {self.next}"

    def to_json(self) -> dict[str, str]:
        """Return it as a flat JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class Before:
    """What there was before.

    Attributes:
        names: Leaks of an earlier session in this process; they are not blamed again.
        memory: Bytes used by device; None where it cannot be told.
        devices: The devices that concern us.
    """

    names: frozenset[str]
    memory: Mapping[int, int] | None
    devices: frozenset[int]


class LeakCheck:
    """Looks before a session, and after it.

    Args:
        system: The machine.
        meter: Tells the use of device memory.
        me: This process.
        visible: ``CUDA_VISIBLE_DEVICES``; None where it is not set.
    """

    def __init__(self, system: System, meter: Meter, me: Process, visible: str | None) -> None:
        self._system, self._meter, self._me = system, meter, me
        reading = meter.read()
        self.before = Before(
            names=frozenset(leak.what for leak in self._named()),
            memory=None if reading is None else used(reading),
            devices=frozenset() if reading is None else frozenset(chosen(reading, visible)),
        )

    def leaks(self, *, settle_s: float, memory_s: float) -> list[Leak]:
        """Return what was left, once what is just ending had its time.

        Args:
            settle_s: Seconds for processes and files.
            memory_s: Seconds for device memory to come back to its baseline and 256 MiB.
        """
        until = self._system.clock() + settle_s
        while (named := self._new()) and self._system.clock() < until:
            self._system.sleep(_PAUSE_S)
        return named + self._memory(0.0 if named else memory_s)

    def _new(self) -> list[Leak]:
        return [leak for leak in self._named() if leak.what not in self.before.names]

    def _named(self) -> list[Leak]:
        return [*self._processes(), *self._engines(), *_files(), *_locks()]

    def _processes(self) -> list[Leak]:
        engines = find(self._system, (), machine=record.this_machine(), me=self._me.pid)
        marked = {
            process: f"of engine {engine.token[:8]}"
            for engine in engines
            if engine.owner == self._me
            for process in engine.processes
        }
        running = [process for process in self._system.everything() if not process.ended]
        for process in below([self._me.pid], running):
            if process.name.startswith(_TITLE):
                marked.setdefault(process, "of an engine that the harness did not start")
        return [_process(process, whose) for process, whose in marked.items()]

    def _engines(self) -> list[Leak]:
        return [
            Leak("engine", f"{found.token[:8]} was never ended (log: {found.log})", _RECLAIM)
            for found in record.open_records()
        ]

    def _memory(self, seconds: float) -> list[Leak]:
        if not self.before.memory:
            return []
        until = self._system.clock() + seconds
        while True:
            reading = self._meter.read()
            if reading is None:
                return []
            over = held(reading, baseline=self.before.memory, devices=self.before.devices)
            if not over:
                return []
            if self._system.clock() >= until:
                limit = f"{SLACK >> 20} MiB above the baseline are allowed"
                return [Leak("device memory", f"{one} ({limit})", one.next) for one in over]
            self._system.sleep(_POLL_S)


def _process(process: Process, whose: str) -> Leak:
    text = f"{process.name} (pid {process.pid}, state {process.state}) {whose} still runs"
    return Leak("process", text, f"harness reclaim --pid {process.pid}:{process.start} --yes")


def _files() -> list[Leak]:
    found = [Leak("folder", str(folder), "remove it") for folder in private.left_folders()]
    found += [
        Leak("shared memory", str(shared.FOLDER / name), "remove it once nobody maps it")
        for name in shared.left()
    ]
    return found


def _locks() -> list[Leak]:
    return [
        Leak("lock", f"GPU {gpu} is still locked by this process", "report this")
        for gpu in gpu_lock.locked_here()
    ]
