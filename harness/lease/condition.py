"""What a lease is now: its record held against the running system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from harness.host import processes
from harness.host.leftovers.record import Machine, this_machine
from harness.host.processes import Process
from harness.lease import record
from harness.lease.record import Lease

Alive = Callable[[Process], bool]


class Condition(StrEnum):
    """What a lease can be."""

    LOADING = "loading"
    READY = "ready"
    BUSY = "busy"
    DEAD = "dead"
    EXPIRED = "expired"
    ELSEWHERE = "elsewhere"

    @property
    def live(self) -> bool:
        """Whether there is an engine, or may be one."""
        return self not in (Condition.DEAD, Condition.EXPIRED)


@dataclass(frozen=True)
class Judged:
    """A lease with what it is now.

    Attributes:
        lease: The record.
        condition: What it is.
        why: Reason or holder; empty where there is nothing to say.
    """

    lease: Lease
    condition: Condition
    why: str = ""

    def __str__(self) -> str:
        return f"{self.condition}: {self.why}" if self.why else str(self.condition)


def judge(
    lease: Lease, *, machine: Machine | None = None, alive: Alive = processes.alive
) -> Judged:
    """Say what a lease is.

    Args:
        lease: As recorded.
        machine: Where this process runs; asked for by default.
        alive: Tells whether a process runs.
    """
    here = this_machine() if machine is None else machine
    there = lease.machine
    if lease.state == record.EXPIRED:
        return Judged(lease, Condition.EXPIRED, lease.reason)
    if lease.state == record.ENDED:
        return Judged(lease, Condition.DEAD, lease.reason)
    # Elsewhere its pids mean nothing: a state folder may lie on a disk that machines share.
    if there.host != here.host:
        return Judged(lease, Condition.ELSEWHERE, f"on {there.host}")
    if there.boot != here.boot:
        return Judged(lease, Condition.DEAD, "the machine was restarted since")
    if there.namespace != here.namespace:
        return Judged(lease, Condition.ELSEWHERE, f"in another container of {there.host}")
    if not alive(lease.keeper):
        return Judged(lease, Condition.DEAD, f"its keeper (pid {lease.keeper.pid}) was killed")
    if lease.state == record.LOADING:
        return Judged(lease, Condition.LOADING)
    if lease.client is not None:
        return Judged(lease, Condition.BUSY, str(lease.client))
    return Judged(lease, Condition.READY)
