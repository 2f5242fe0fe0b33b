"""A machine of plain facts for reclaim's tests: processes that end as they are told to, or not."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harness.host.processes import Process
from harness.reclaim.memory import DeviceUse, Holder, Reading

SHELL = Process(50, 5, parent=1, state="S", name="bash", group=50, session=50)
ME = Process(60, 6, parent=50, state="R", name="harness", group=60, session=50)


@dataclass
class Double:
    """A machine whose clock only moves when somebody waits.

    Attributes:
        table: Its processes.
        environments: Their environments.
        stubborn: Pids that end on SIGKILL only.
        unkillable: Pids that never end.
        foreign: Pids that may not be signalled.
        sent: What was sent: (pid, signal), in order.
        sent_at: When, for each of them.
    """

    table: list[Process] = field(default_factory=lambda: [SHELL, ME])
    environments: dict[int, dict[str, str]] = field(default_factory=dict)
    stubborn: set[int] = field(default_factory=set)
    unkillable: set[int] = field(default_factory=set)
    foreign: set[int] = field(default_factory=set)
    trackers: set[int] = field(default_factory=set)
    sent: list[tuple[int, int]] = field(default_factory=list)
    sent_at: list[float] = field(default_factory=list)
    now: float = 0.0

    def everything(self) -> list[Process]:
        return list(self.table)

    def environment(self, pid: int) -> Mapping[str, str]:
        return self.environments.get(pid, {})

    def command_line(self, pid: int) -> str:
        return ""

    def send(self, process: Process, number: int) -> bool:
        if process not in self.table or process.pid in self.foreign:
            return False
        if number == 0:
            return True
        self.sent.append((process.pid, number))
        self.sent_at.append(self.now)
        ends = number == signal.SIGKILL or process.pid not in self.stubborn
        if ends and process.pid not in self.unkillable:
            self.table.remove(process)
        return True

    def keeps(self, process: Process) -> bool:
        return process.pid in self.trackers

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pids(self) -> set[int]:
        return {process.pid for process in self.table}

    def replace(self, old: Process, **changes: object) -> None:
        self.table[self.table.index(old)] = replace(old, **changes)  # type: ignore[arg-type]


@dataclass
class Gauge:
    """A meter of one device: what is used follows from who runs, and from when.

    Attributes:
        machine: Whose processes hold the memory.
        holds: Bytes by pid.
        late: Seconds on the machine's clock until the driver gives memory back.
        stuck: Bytes that never come back.
        listed: Whether the driver lists the holders.
        deaf: Whether there is no answer.
    """

    machine: Double
    holds: dict[int, int] = field(default_factory=dict)
    late: float = 0.0
    stuck: int = 0
    listed: bool = True
    deaf: bool = False

    def read(self) -> Reading | None:
        if self.deaf:
            return None
        running = self.machine.pids()
        held = {pid: size for pid, size in self.holds.items() if pid in running}
        gone = sum(size for pid, size in self.holds.items() if pid not in running)
        waiting = gone if self.machine.now < self.late else 0
        holders = tuple(Holder(pid, size) for pid, size in held.items()) if self.listed else ()
        return (DeviceUse(2, sum(held.values()) + waiting + self.stuck, "GPU-2", holders),)
