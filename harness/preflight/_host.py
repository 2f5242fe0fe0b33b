"""What the machine around the GPUs offers: memory, shared memory, disk, files, ports."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHARED_MEMORY: Final = Path("/dev/shm")
_PORTS = ("VLLM_PORT", "MASTER_PORT")
STALE_NAMES: Final = ("vllm_", "psm_", "nccl-", "torch_", "sem.mp-")
"""How files begin that vLLM, Python, NCCL and torch leave in shared memory."""

_STALE = re.compile(
    "|".join(re.escape(name) for name in STALE_NAMES).replace("torch_", r"torch_\d")
)
_ENGINES = re.compile(r"python|vllm|ray::", re.IGNORECASE)
_YOUNG_S = 60.0
_NVIDIA, _DISPLAY = "0x10de", "0x03"


@dataclass(frozen=True)
class SharedFile:
    """A file in shared memory that no process seen here holds.

    Attributes:
        path: Where it lies.
        bytes: What it occupies.
        age: Seconds since it was written last.
    """

    path: Path
    bytes: int
    age: float


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The machine, or the container, in bytes and counts; None: not known.

    Attributes:
        memory_free: What can still be had, by the kernel's estimate and every limit of the
            control group (container), whichever is less.
        memory_limit: The control group's limit; None without one.
        shm_total: Size of ``/dev/shm``.
        shm_free: Free in it.
        stale: Files of ended engines in it.
        disk_place: Folder that was asked.
        disk_problem: Why nothing can be made there, however much is free; empty: it can be.
        disk_free: Free bytes there.
        disk_files: Files that can still be made there; None where there is no fixed number.
        open_files: Soft limit of open files of a process.
        loopback: Why no port can be had on the loopback interface; empty: one can.
        taken: Ports that the environment names for an engine and that are in use:
            ``NAME=PORT``.
        module: Version of the loaded kernel module.
        gpus: GPUs that driver and device files show.
        boards: NVIDIA boards on the PCI bus.
    """

    memory_free: int | None = None
    memory_limit: int | None = None
    shm_total: int | None = None
    shm_free: int | None = None
    stale: tuple[SharedFile, ...] = ()
    disk_place: Path | None = None
    disk_problem: str = ""
    disk_free: int | None = None
    disk_files: int | None = None
    open_files: int | None = None
    loopback: str = ""
    taken: tuple[str, ...] = ()
    module: str = ""
    gpus: int = 0
    boards: int = 0


def look(
    environment: Mapping[str, str], *, disk: Path | None = None, root: Path = Path("/")
) -> HostFacts:
    """Look at this machine.

    Args:
        environment: Where named ports are read.
        disk: Folder to ask; it need not exist.
        root: Where ``proc``, ``sys`` and ``dev`` are.
    """
    free, limit = _memory(root)
    shm = _space(root / "dev/shm")
    place = _existing(disk) if disk else None
    out = _space(place) if place else None
    return HostFacts(
        memory_free=free,
        memory_limit=limit,
        shm_total=shm[0] if shm else None,
        shm_free=shm[1] if shm else None,
        stale=tuple(_stale(root)),
        disk_place=place,
        disk_problem=_problem(place, out) if place else "",
        disk_free=out[1] if out else None,
        disk_files=out[2] if out else None,
        open_files=_open_files(),
        loopback=_loopback(),
        taken=tuple(_taken(environment)),
        module=_read(root / "sys/module/nvidia/version").strip(),
        gpus=driver_gpus(root),
        boards=_boards(root),
    )


def driver_gpus(root: Path = Path("/")) -> int:
    """Count GPUs by the driver's files.

    A container sees every GPU of its host in ``/proc`` and only those that it was given in
    ``/dev``.
    """
    try:
        known = len(list((root / "proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        return 0
    nodes = [n for n in (root / "dev").glob("nvidia*") if n.name[len("nvidia") :].isdecimal()]
    return min(known, len(nodes))


def _memory(root: Path) -> tuple[int | None, int | None]:
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _read(root / "proc/meminfo"), re.M)
    free = int(found.group(1)) << 10 if found else None
    least: int | None = None
    for folder in _groups(root):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if limit is None or limit >= 1 << 62:
            continue
        least = limit if least is None else min(least, limit)
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        # The page cache counts as used, and is given up when memory runs short.
        cache = re.search(r"^(?:total_)?inactive_file (\d+)", _read(folder / "memory.stat"), re.M)
        left = max(0, limit - used + (int(cache.group(1)) if cache else 0))
        free = left if free is None else min(free, left)
    return free, least


def _groups(root: Path) -> Iterable[Path]:
    """Return the control groups that bound this process, from its own up to the root."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, kinds, path = (*line.split(":", 2), "", "")[:3]
        if number == "0":
            base = root / "sys/fs/cgroup"
        elif "memory" in kinds.split(","):
            base = root / "sys/fs/cgroup/memory"
        else:
            continue
        parts = Path(path).parts[1:]
        for length in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:length])


def _space(path: Path) -> tuple[int, int, int | None] | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    # File systems without a fixed number of files report zero of zero.
    files = found.f_favail if found.f_files else None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, files


def _existing(path: Path) -> Path:
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _problem(place: Path, space: tuple[int, int, int | None] | None) -> str:
    if not place.is_dir():
        return "is a file, not a folder"
    if space is not None and not space[0]:
        return "belongs to the system (a file system without any space)"
    return "" if os.access(place, os.W_OK | os.X_OK) else "may not be written to by this user"


def _stale(root: Path) -> Iterable[SharedFile]:
    found: list[tuple[Path, os.stat_result]] = []
    try:
        for entry in os.scandir(root / "dev/shm"):
            if _STALE.match(entry.name) and entry.is_file(follow_symlinks=False):
                found.append((Path(entry.path), entry.stat(follow_symlinks=False)))
    except OSError:
        return
    if not found:
        return
    held, blind = _held(root)
    for path, facts in sorted(found):
        age = time.time() - facts.st_mtime
        if facts.st_ino in held or age < _YOUNG_S or facts.st_uid in blind:
            continue
        yield SharedFile(path, facts.st_blocks * 512, age)


def _held(root: Path) -> tuple[set[int], set[int]]:
    """Return inodes in shared memory that processes map or have open, and users we cannot see.

    A process that may not be looked at hides its user's files, unless its name is not that of
    an engine: a container's init often may not, and holds none.
    """
    inodes: set[int] = set()
    blind: set[int] = set()
    for folder in (root / "proc").glob("[0-9]*"):
        try:
            inodes.update(_mapped(folder))
            inodes.update(_opened(folder))
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        except OSError:
            if _ENGINES.search(_read(folder / "comm")):
                blind.add(_owner(folder))
    return inodes, blind


def _mapped(process: Path) -> Iterable[int]:
    for line in (process / "maps").read_bytes().splitlines():
        parts = line.split(None, 5)  # address, rights, offset, device, inode, path
        if len(parts) == 6 and parts[5].startswith(b"/dev/shm/"):
            yield int(parts[4])


def _opened(process: Path) -> Iterable[int]:
    for entry in os.scandir(process / "fd"):
        with contextlib.suppress(FileNotFoundError):  # closed, or removed while it is open
            if str(Path(entry.path).readlink()).startswith("/dev/shm/"):
                yield Path(entry.path).stat().st_ino


def _owner(folder: Path) -> int:
    try:
        return folder.stat().st_uid
    except OSError:
        return -1


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def _loopback() -> str:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _taken(environment: Mapping[str, str]) -> Iterable[str]:
    for name in _PORTS:
        text = environment.get(name, "")
        if not text.isdecimal() or not 0 < int(text) < 1 << 16:
            continue
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", int(text)))
        except OSError:
            yield f"{name}={text}"


def _boards(root: Path) -> int:
    return sum(
        _read(folder / "vendor").strip() == _NVIDIA and _read(folder / "class").startswith(_DISPLAY)
        for folder in (root / "sys/bus/pci/devices").glob("*")
    )


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
