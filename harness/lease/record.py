"""What is known of one leased engine: a record on disk that outlives every command."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from harness import state
from harness.errors import UsageError
from harness.host.leftovers.record import Machine
from harness.host.processes import Process

PROTOCOL: Final = 1
"""Of the record and of the talk over its socket; another number is another harness."""

DEFAULT_NAME: Final = "default"
LOADING: Final = "loading"
READY: Final = "ready"
ENDED: Final = "ended"
EXPIRED: Final = "expired"
"""How a keeper describes itself; whether that still holds is judged by :mod:`.condition`."""

_KINDS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("name", "state", "reason", "owner", "capture", "devices"), str),
    **dict.fromkeys(("started", "expires"), int | float),
    **dict.fromkeys(("loads", "sessions"), int),
    "loaded": int | float | None,
    "options": Mapping,
    "keeper": Process,
}
"""What a record's fields must be, as far as commands reckon with them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_RESERVED = frozenset(("auto", "yes", "no", "on", "off", "true", "false", "0", "1"))


@dataclass(frozen=True)
class Client:
    """Who uses a leased engine.

    Attributes:
        pid: Its process.
        start: That process's start time, see :class:`harness.host.processes.Process`.
        command: Its command line, shortened.
        since: When it attached, Unix seconds.
        gone: It has vanished, and the engine still works on what it had asked for.
    """

    pid: int
    start: int
    command: str
    since: float
    gone: bool = False

    def __str__(self) -> str:
        what = f"pid {self.pid} ({self.command})"
        return f"{what}, which is gone: its last batch is being finished" if self.gone else what


@dataclass(frozen=True)
class Lease:
    """One leased engine.

    Attributes:
        name: The user's name for it.
        state: ``loading``, ``ready``, ``ended`` or ``expired``, in its keeper's words.
        reason: Why it ended; empty while it has not.
        owner: User that started it.
        machine: Where it runs, and so where its pids mean something.
        keeper: The process that holds it.
        engine: The engine's process, once there is one.
        started: Unix seconds.
        expires: Unix seconds.
        loaded: When it was loaded and proved, Unix seconds; None before.
        loads: Loads so far: 0 or 1.
        sessions: How many sessions have attached.
        folder: Private folder with socket and logs.
        spool: Where its samples appear.
        options: What it was started with, see :mod:`.asked`.
        capture: ``native`` or ``patched``.
        depths: Depth of each column.
        devices: What it runs on, in words.
        reply: What the engine said after its load; None before.
        client: Who uses it now.
    """

    name: str
    state: str
    machine: Machine
    keeper: Process
    started: float
    expires: float
    folder: Path
    spool: Path
    reason: str = ""
    owner: str = ""
    engine: Process | None = None
    loaded: float | None = None
    loads: int = 0
    sessions: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    capture: str = ""
    depths: tuple[int, ...] = ()
    devices: str = ""
    reply: Mapping[str, Any] | None = None
    client: Client | None = None

    @property
    def log(self) -> Path:
        """What the engine printed."""
        return self.folder / "engine.log"

    @property
    def keeper_log(self) -> Path:
        """What the keeper printed; normally nothing."""
        return self.folder / "keeper.log"

    @property
    def identity(self) -> Path:
        """File with what the engine was loaded from, see :mod:`.identity`."""
        return self.folder / "identity.json"

    def to_json(self) -> dict[str, Any]:
        """Return the lease as a JSON object, as its record holds it."""
        body = {**vars(self), "protocol": PROTOCOL}
        for name in ("folder", "spool"):
            body[name] = str(body[name])
        for name in ("keeper", "engine"):
            body[name] = body[name] and {"pid": body[name].pid, "start": body[name].start}
        body["machine"] = vars(self.machine)
        body["client"] = body["client"] and vars(body["client"])
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Lease | None:
        """Read a record; None where another harness wrote it, or it is broken."""
        try:
            values = {name: body[name] for name in cls.__dataclass_fields__}
            if body["protocol"] != PROTOCOL:
                return None
            for name in ("folder", "spool"):
                values[name] = Path(values[name])
            for name in ("keeper", "engine"):
                values[name] = values[name] and Process(**values[name])
            values["machine"] = Machine(**values["machine"])
            values["client"] = values["client"] and Client(**values["client"])
            values["depths"] = tuple(values["depths"])
            if not all(isinstance(values[name], kinds) for name, kinds in _KINDS.items()):
                return None
        except (KeyError, TypeError):
            return None
        return cls(**values)


@dataclass(frozen=True)
class Unreadable:
    """A record that is there and tells of no lease.

    Attributes:
        name: The name of its lease, by the file's.
        path: Where it lies.
        why: Why it cannot be read.
    """

    name: str
    path: Path
    why: str

    @property
    def next(self) -> str:
        """What to do: whether an engine runs is asked by other means than the record."""
        remove = f"{'rm -r' if self.path.is_dir() else 'rm'} {shlex.quote(str(self.path))}"
        return f"harness reclaim shows what still runs; {remove} forgets the record"

    def to_json(self) -> dict[str, str]:
        """Return it as a flat JSON object."""
        return {"name": self.name, "record": str(self.path), "why": self.why, "next": self.next}


class Book:
    """The leases of one state folder.

    Args:
        folder: The state folder; by default the user's.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or state.state_folder()) / state.LEASES

    @property
    def lock(self) -> Path:
        """Lock file that is held while a name is taken; it stays, see ``dataset._lock``."""
        return self.folder / ".lock"

    def home(self, name: str) -> Path:
        """Return the private folder of a lease."""
        return self.folder / name

    def path(self, name: str) -> Path:
        """Return the file of a record."""
        return self.folder / f"{name}.json"

    def read(self, name: str) -> Lease | None:
        """Return a lease by name."""
        record = state.read_record(self.path(name))
        return None if record is None else _lease(self.path(name), record)

    def all(self) -> list[Lease]:
        """Return every lease that can be read, by name."""
        found = (_lease(path, record) for path, record in state.records(self.folder))
        return [lease for lease in found if lease is not None]

    def unreadable(self, name: str | None = None) -> list[Unreadable]:
        """Return every record that cannot be read, or the one of a name."""
        found = state.entries(self.folder)
        return [
            Unreadable(path.stem, path, _why(path, record))
            for path, record in found
            if name in (None, path.stem) and (record is None or _lease(path, record) is None)
        ]

    def write(self, lease: Lease) -> None:
        """Write a lease's record.

        Raises:
            Refused: ``state.unwritable``.
        """
        state.write_record(self.path(lease.name), lease.to_json())

    def change(self, lease: Lease, **changes: Any) -> Lease:
        """Write a lease's record with changes and return the lease as it is then."""
        changed = replace(lease, **changes)
        self.write(changed)
        return changed


def _lease(path: Path, record: Mapping[str, Any]) -> Lease | None:
    lease = Lease.from_json(record)
    return lease if lease is not None and lease.name == path.stem else None


def _why(path: Path, record: Mapping[str, Any] | None) -> str:
    if record is not None:
        number = record.get("protocol")
        if number != PROTOCOL:
            return f"another release of the harness wrote it (protocol {number!r}, not {PROTOCOL})"
        return "what it holds is no lease of this name"
    try:
        if not path.is_file():
            return "it is no file"
        path.read_bytes()
    except OSError as error:
        return error.strerror or str(error)
    return "it is no JSON object"


def check_name(name: str, where: str = "--name", next: str = "choose another name") -> str:
    """Return a name that a lease may have.

    Args:
        name: As a user gave it.
        where: The option or argument.
        next: What to do instead.

    Raises:
        UsageError: ``lease.bad-name``.
    """
    if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
        raise UsageError(
            "lease.bad-name",
            expected="up to 40 letters, digits, dots, dashes or underscores, and neither of "
            "auto, yes, no",
            found=repr(name),
            where=where,
            next=next,
        )
    return name


def this_user() -> str:
    """Return the user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
