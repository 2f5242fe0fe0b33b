"""Find what the harness has started: by its records, and by the marks of running processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness import state
from harness.host.leftovers.private import left_on_disk
from harness.host.leftovers.record import OWNER, TOKEN, EngineRecord, Machine, read_owner_mark
from harness.host.processes import Process, below
from harness.reclaim.system import System


class Standing(StrEnum):
    """How an engine that was started stands now."""

    LIVE = "live"
    """Its owner runs."""
    ORPHAN = "orphan"
    """Its owner is gone, and something of it runs."""
    STALE = "stale"
    """Nothing of it runs; only its record is left."""
    ELSEWHERE = "elsewhere"
    """It was started on another machine or in another container of this one."""
    UNREADABLE = "unreadable"
    """The record has a form that this release does not know."""


@dataclass(frozen=True)
class Found:
    """One engine that the harness has started.

    Attributes:
        token: Its mark.
        standing: How it stands.
        processes: What runs of it: reaper, engine, workers, whatever they started.
        owner: Who started it; None where that is not known.
        record: Its record; None where only marked processes tell of it.
        path: Where the record lies.
    """

    token: str
    standing: Standing
    processes: tuple[Process, ...] = ()
    owner: Process | None = None
    record: EngineRecord | None = None
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the engine as a JSON object."""
        record = self.record
        return {
            "token": self.token,
            "standing": str(self.standing),
            "owner": self.owner and self.owner.to_json(),
            "processes": [process.to_json() for process in self.processes],
            "devices": record and record.devices,
            "model": record.model if record else "",
            "command": record.command if record else "",
            "log": record.log if record else "",
            "started_at": record.started_at if record else None,
            "left": list(record.left) if record else [],
        }


def find(
    system: System,
    records: Iterable[tuple[Path, EngineRecord | None]],
    *,
    machine: Machine,
    me: int,
) -> list[Found]:
    """Look at the records and at the running processes.

    Args:
        system: The machine.
        records: What :func:`harness.host.leftovers.record.recorded` yields.
        machine: Where this process runs.
        me: This process; it and its ancestors are never found.
    """
    look = _Look(system, me)
    found = []
    for path, record in records:
        if record is None:
            found.append(Found(path.stem, Standing.UNREADABLE, path=path))
        else:
            found.append(_of_record(look, path, record, machine))
    known = {engine.token for engine in found}
    for token in sorted(set(look.marked) - known):
        owner = look.owners.get(token)
        live = owner is not None and look.runs(owner)
        members = look.members(token, [])
        standing = Standing.LIVE if live else Standing.ORPHAN
        found.append(Found(token, standing, members, owner))
    return found


def still_running(system: System, engine: Found, *, me: int) -> list[Process]:
    """Look again for what runs of one engine, with what it has started meanwhile."""
    look = _Look(system, me)
    return list(look.members(engine.token, engine.processes, engine.record))


def _of_record(look: _Look, path: Path, record: EngineRecord, machine: Machine) -> Found:
    there, here = record.machine, machine
    if there != here:
        # The same host after a reboot: nothing of that boot can run. All else is not ours to see.
        rebooted = there.host == here.host and there.boot != here.boot
        standing = Standing.STALE if rebooted else Standing.ELSEWHERE
        return Found(record.token, standing, (), record.owner, record, path)
    members = look.members(record.token, left_on_disk(Path(record.folder))[0], record)
    if look.runs(record.owner):
        standing = Standing.LIVE
    else:
        standing = Standing.ORPHAN if members else Standing.STALE
    return Found(record.token, standing, members, record.owner, record, path)


class _Look:
    """One look at all processes."""

    def __init__(self, system: System, me: int) -> None:
        self._all = [process for process in system.everything() if not process.ended]
        self._by_pid = {process.pid: process for process in self._all}
        self._hands_off = set(ancestors(me, self._by_pid)) | {me}
        self.marked: dict[str, list[Process]] = {}
        self.owners: dict[str, Process] = {}
        ours = state.state_folder()
        for process in self._all:
            environment = system.environment(process.pid)
            token = environment.get(TOKEN)
            # Another state folder is another installation's, and its own reclaim's business.
            if token and state.state_folder(environment) == ours:
                self.marked.setdefault(token, []).append(process)
                if owner := read_owner_mark(environment.get(OWNER, "")):
                    self.owners.setdefault(token, owner)

    def runs(self, process: Process) -> bool:
        """Tell whether this very process still runs."""
        return self._by_pid.get(process.pid) == process

    def members(
        self, token: str, known: Iterable[Process], record: EngineRecord | None = None
    ) -> tuple[Process, ...]:
        """Return what runs of an engine.

        These are its marked processes and those that were known before by pid and start time,
        then everything below them. Then its session and its process group: the kernel keeps their
        numbers from being used again while a member lives, so where one member is known to be
        ours, all are.
        """
        recorded = [p for p in (record.reaper, record.engine) if p] if record else []
        sure = [self._by_pid[p.pid] for p in (*recorded, *known) if self.runs(p)]
        sure += self.marked.get(token, [])
        session = record.reaper.pid if record and record.reaper else 0
        group = record.engine.pid if record and record.engine else 0
        if any(process.session == session for process in sure):
            sure += [process for process in self._all if process.session == session]
        if any(process.group == group for process in sure):
            sure += [process for process in self._all if process.group == group]
        found = dict.fromkeys([*sure, *below([p.pid for p in sure], self._all)])
        return tuple(process for process in found if process.pid not in self._hands_off)


def ancestors(pid: int, by_pid: Mapping[int, Process]) -> list[int]:
    """Return the pids of a process's parents, nearest first."""
    found: list[int] = []
    while (process := by_pid.get(pid)) is not None and process.parent not in (0, *found):
        found.append(process.parent)
        pid = process.parent
    return found
