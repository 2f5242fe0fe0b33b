"""What is written down of every engine that this user's harness started, while it runs.

A record outlives whoever wrote it, and so lets ``harness reclaim`` find what a killed session
left. It is only a hint: pids are named with their start times, and a reader checks them against
the running system. The same facts travel as marks in the environment of every process of the
engine, for the case that no record could be written.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from harness import state
from harness.errors import Refused
from harness.host import processes
from harness.host.processes import Process

TOKEN: Final = "HARNESS_HOST_TOKEN"
"""Variable that every process of an engine has: which engine it belongs to."""

OWNER: Final = "HARNESS_HOST_OWNER"
"""Variable beside it: the owner as ``PID:START``."""


@dataclass(frozen=True)
class Machine:
    """Where pids and start times of a record mean something.

    Attributes:
        host: Host name.
        boot: Id of this boot.
        namespace: The pid namespace, so that containers of one host are told apart.
    """

    host: str
    boot: str
    namespace: str


@cache
def this_machine() -> Machine:
    """Return where this process runs."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        boot = ""
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 -- it is no path
    except OSError:
        namespace = ""
    return Machine(socket.gethostname(), boot, namespace)


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """One engine that was started.

    Attributes:
        token: Its mark: ``HARNESS_HOST_TOKEN`` of all its processes.
        machine: Where.
        owner: The process that started it and is to end it.
        reaper: The process between owner and engine; its pid is the session of the engine.
        engine: The engine, once it runs; its pid is its process group.
        devices: ``CUDA_VISIBLE_DEVICES`` of the engine; None where it is not set.
        log: What the engine prints.
        folder: The private folder.
        model: What it loads, where that is known.
        command: The owner's command line.
        started_at: Seconds since 1970.
        left: What could not be ended: names with pids.
    """

    token: str
    machine: Machine
    owner: Process
    reaper: Process | None = None
    engine: Process | None = None
    devices: str | None = None
    log: str = ""
    folder: str = ""
    model: str = ""
    command: str = ""
    started_at: float = 0.0
    left: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object."""
        told = {"owner": self.owner, "reaper": self.reaper, "engine": self.engine}
        return {
            **asdict(self),
            **{name: process and process.to_json() for name, process in told.items()},
            "session": self.reaper.pid if self.reaper else None,
            "group": self.engine.pid if self.engine else None,
            "left": list(self.left),
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> EngineRecord:
        """Read a record.

        Raises:
            KeyError: A field is missing.
            TypeError: A field is of another kind.
            ValueError: A number is none.
        """
        owner = _process(raw["owner"])
        if owner is None:
            raise ValueError("a record without an owner")
        return EngineRecord(
            token=str(raw["token"]),
            machine=Machine(**raw["machine"]),
            owner=owner,
            reaper=_process(raw["reaper"]),
            engine=_process(raw["engine"]),
            devices=None if raw["devices"] is None else str(raw["devices"]),
            log=str(raw["log"]),
            folder=str(raw["folder"]),
            model=str(raw["model"]),
            command=str(raw["command"]),
            started_at=float(raw["started_at"]),
            left=tuple(map(str, raw["left"])),
        )


def owner_mark(owner: Process) -> str:
    """Return the owner as its mark says it."""
    return f"{owner.pid}:{owner.start}"


def read_owner_mark(text: str) -> Process | None:
    """Read an owner's mark; None where it is none."""
    pid, _, start = text.partition(":")
    if not (pid.isdecimal() and start.isdecimal()):
        return None
    return Process(pid=int(pid), start=int(start))


class Recorder:
    """Keeps the record of one engine up to date; never fails a start.

    A home that cannot be written (a read-only container, a full disk) must not keep an engine
    from running: then there is no record, ``problem`` says why, and the marks in the
    environment still lead ``harness reclaim`` to the processes.

    Args:
        record: The first state of the record; nothing is written yet.
    """

    def __init__(self, record: EngineRecord) -> None:
        self.record = record
        self.path = path_of(record.token)
        self.problem = ""
        _open[record.token] = self

    def note(self, **changes: Any) -> None:
        """Change fields and write the record."""
        self.record = replace(self.record, **changes)
        try:
            state.write_record(self.path, self.record.to_json())
        except Refused as refusal:
            self.problem = f"{refusal.failure.found} ({refusal.failure.where})"

    def drop(self) -> None:
        """Remove the record: the engine is gone."""
        _open.pop(self.record.token, None)
        state.drop_record(self.path)


_open: dict[str, Recorder] = {}


def open_records() -> list[EngineRecord]:
    """Return the records of the engines that this process has started and not ended."""
    return [recorder.record for recorder in _open.values()]


def first_record(*, token: str, owner: Process, **facts: Any) -> EngineRecord:
    """Return the record of an engine that is about to be started."""
    return EngineRecord(
        token=token,
        machine=this_machine(),
        owner=owner,
        command=processes.command_line(owner.pid) or " ".join(sys.argv),
        started_at=round(time.time(), 3),
        **facts,
    )


def path_of(token: str) -> Path:
    """Return where the record of an engine lies."""
    return state.state_folder() / state.ENGINES / f"{token}.json"


def recorded() -> Iterator[tuple[Path, EngineRecord | None]]:
    """Yield the records of this user's engines; None for one of an unknown form."""
    for path, raw in state.entries(state.state_folder() / state.ENGINES):
        try:
            yield path, None if raw is None else EngineRecord.from_json(raw)
        except (KeyError, TypeError, ValueError):
            yield path, None


def _process(raw: Any) -> Process | None:
    if raw is None:
        return None
    return Process(pid=int(raw["pid"]), start=int(raw["start"]), name=str(raw["name"]))
