"""One harness session for each GPU of a machine.

A session holds a lock for every GPU that its engine may see. The kernel drops a lock when its
process ends, however it ends, so a file that a dead process left is no obstacle. Who holds a lock
stands in a file beside it, for the message only.

The locks lie in one folder for all users, ``/tmp/harness-gpu-locks``; containers that share GPUs
but not ``/tmp`` need a common one (``HARNESS_GPU_LOCKS``).
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from harness.errors import Refused
from harness.host import processes
from harness.host.leftovers.record import this_machine
from harness.host.processes import Process

VARIABLE: Final = "HARNESS_GPU_LOCKS"
"""Environment variable that names another folder for the locks."""

_FOLDER: Final = Path("/tmp/harness-gpu-locks")
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_DRIVER: Final = Path("/proc/driver/nvidia/gpus")
_NODES: Final = Path("/dev")
_ALL: Final = "all"
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]+)\s*$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Owner:
    """Who holds, or held, a lock.

    Attributes:
        process: Pid and start time.
        user: Login name.
        command: Command line.
        since: Seconds since 1970.
        here: Whether its pid means something here: the same machine, boot and container.
    """

    process: Process
    user: str
    command: str
    since: float
    here: bool

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended."""
        return self.here and not processes.alive(self.process)

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        what = self.command if len(self.command) <= 200 else self.command[:197] + "..."
        where = "" if self.here else ", in another container or machine"
        return f"pid {self.process.pid} of {self.user}{where}, since {since}: {what}"


def gpus_of(
    environment: Mapping[str, str], *, driver: Path = _DRIVER, nodes: Path = _NODES
) -> tuple[str, ...]:
    """Return a name for each GPU that an engine with this environment may use.

    A GPU's name is its uuid where the driver's files tell it, so that two sessions that number
    the GPUs differently still meet; else what ``CUDA_VISIBLE_DEVICES`` calls it.

    Args:
        environment: The engine's.
        driver: The driver's folder with one entry a GPU, in the order of the PCI bus.
        nodes: Folder of the device nodes: a container has only those that it was given.
    """
    known = _known(driver, nodes)
    visible = environment.get(_VISIBLE)
    if visible is None:
        return tuple(known) or (_ALL,)
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    return tuple(sorted({_named(entry, known) for entry in entries}))


def _known(driver: Path, nodes: Path) -> list[str]:
    """Return the uuid of each GPU by number; a number where the uuid is not told."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for entry in sorted(driver.iterdir()):
            text = (entry / "information").read_text("utf-8", "replace")
            minor, uuid = _MINOR.search(text), _UUID.search(text)
            if minor is None or not (nodes / f"nvidia{minor.group(1)}").exists():
                continue
            found.append(uuid.group(1) if uuid else f"index-{len(found)}")
    return found


def _named(entry: str, known: Sequence[str]) -> str:
    if entry.isdecimal():
        return known[int(entry)] if int(entry) < len(known) else f"index-{int(entry)}"
    # CUDA takes the beginning of a uuid where it is clear.
    full = [uuid for uuid in known if uuid.startswith(entry)]
    return full[0] if len(full) == 1 else re.sub(r"[^\w.-]", "_", entry)


_locks: weakref.WeakSet[GpuLock] = weakref.WeakSet()


def locked_here() -> list[str]:
    """Return the GPUs that this process holds locked."""
    return sorted(gpu for lock in _locks if lock.held for gpu in lock.gpus)


class GpuLock:
    """The locks of one session; a context manager.

    Attributes:
        gpus: The GPUs that are locked.
        taken_over: Owners that ended without giving their lock back.
    """

    def __init__(self, gpus: Sequence[str], *, folder: Path | None = None) -> None:
        """Take them all, or none.

        Args:
            gpus: What :func:`gpus_of` returns.
            folder: Where the locks lie; by default ``HARNESS_GPU_LOCKS``, else a folder in
                ``/tmp``.

        Raises:
            Refused: ``gpus.locked``: another session has one of them. ``gpus.lock-folder``: no
                lock can be taken.
        """
        self.gpus = tuple(gpus)
        self.taken_over: list[Owner] = []
        self._held: list[tuple[FileLock, Path]] = []
        _locks.add(self)
        self._folder = folder or Path(os.environ.get(VARIABLE) or _FOLDER)
        try:
            _make_common(self._folder)
            # In one order everywhere, so that two sessions cannot each hold half.
            for gpu in sorted(self.gpus):
                self._take(gpu)
        except OSError as error:
            self.release()
            raise Refused(
                "gpus.lock-folder",
                expected="a folder in which every user of this machine can lock its GPUs",
                found=f"{error.strerror or error}",
                where=str(self._folder),
                next=f"let everybody write there, or name another one for all: {VARIABLE}=DIR",
            ) from error
        except BaseException:
            self.release()
            raise

    def _take(self, gpu: str) -> None:
        path = self._folder / f"{gpu}.lock"
        beside = path.with_suffix(".json")
        lock = FileLock(path, timeout=0, mode=0o666, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise _locked(gpu, path, _read_owner(beside)) from None
        self._held.append((lock, beside))
        if (before := _read_owner(beside)) is not None:
            self.taken_over.append(before)
        _write_owner(beside)

    @property
    def held(self) -> bool:
        """Whether any GPU is still locked."""
        return bool(self._held)

    def release(self) -> None:
        """Give the locks back; a second call does nothing."""
        while self._held:
            lock, beside = self._held.pop()
            with contextlib.suppress(OSError):
                beside.unlink()
            lock.release()

    def __enter__(self) -> GpuLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _make_common(folder: Path) -> None:
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    # For everybody, and not sticky: there, Linux keeps users from opening files of others.
    folder.chmod(0o777)


def _locked(gpu: str, path: Path, owner: Owner | None) -> Refused:
    found = "another session has it, who it is is not known" if owner is None else str(owner)
    following = "wait for it to end, or choose other GPUs with CUDA_VISIBLE_DEVICES"
    if owner is not None and owner.process == processes.read(os.getpid()):
        found = f"this very process has it already ({owner})"
        following = "use the engine that is loaded, or close it first"
    elif owner is not None and owner.gone:
        heirs = list(_holders(path))
        names = ", ".join(f"{p.name} (pid {p.pid})" for p in heirs) or "a process not visible here"
        found = f"{owner}; it has ended, but {names}, which it had started, keeps the lock"
        pid = f" --pid {heirs[0].pid}" if heirs else ""
        following = f"harness reclaim{pid}"
    return Refused(
        "gpus.locked",
        expected="one harness session for each GPU",
        found=found,
        where=f"GPU {gpu} ({path})",
        next=following,
        owner=owner,
    )


def _holders(path: Path) -> Iterator[Process]:
    """Yield the visible processes that have a file open."""
    for process in processes.everything():
        with contextlib.suppress(OSError):
            opened = Path(f"/proc/{process.pid}/fd").iterdir()
            if any(file.readlink() == path for file in opened):
                yield process


def _write_owner(path: Path) -> None:
    me = processes.read(os.getpid())
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    note = {
        "pid": os.getpid(),
        "start": me.start if me else 0,
        "user": user,
        "command": processes.command_line(os.getpid()),
        "since": time.time(),
        "machine": vars(this_machine()),
    }
    # It only helps a message; a full disk is reported where it matters.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)  # Another user's can be removed there, not written.
        path.write_text(json.dumps(note), "utf-8")
        path.chmod(0o644)


def _read_owner(path: Path) -> Owner | None:
    try:
        raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return Owner(
            process=Process(int(raw["pid"]), int(raw["start"])),
            user=str(raw["user"]),
            command=str(raw["command"]),
            since=float(raw["since"]),
            here=raw["machine"] == vars(this_machine()),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
