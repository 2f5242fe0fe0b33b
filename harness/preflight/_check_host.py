"""Is there room around the GPUs: host memory, shared memory, disk, files, ports?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from harness.preflight._check import Check, Scene, size
from harness.preflight._host import STALE_NAMES
from harness.preflight.verdict import Finding, Verdict

SHM_SHARED = 1 << 30
SHM_ALONE = 64 << 20
STALE_MOST = 1 << 30
OPEN_FILES = 1024
DISK_RESERVE = 64 << 20
_SHOWN = 3
_LISTED = 20


def _memory(scene: Scene) -> Iterator[Finding]:
    host, need = scene.host, scene.need
    if not need.host_bytes and not need.page_cache:
        return
    if host.memory_free is None:
        text, step = "free memory is not told by /proc/meminfo", "free -g"
        yield Finding("host.memory", Verdict.UNKNOWN, text, size(need.host_bytes), step)
    elif host.memory_free < need.host_bytes:
        limit = host.memory_limit
        bound = "" if limit is None else f"; this container's limit is {size(limit)}"
        yield Finding(
            "host.memory",
            Verdict.DIRTY,
            f"{size(host.memory_free)} can be had{bound}",
            f"{size(need.host_bytes)} for all workers",
            "free memory, raise the container's limit, or fewer workers",
        )
    elif need.page_cache and host.memory_free < need.host_bytes + need.page_cache:
        text = (
            f"{size(host.memory_free)} can be had: the checkpoint's {size(need.page_cache)} will "
            "not stay in memory, so that every load reads the disk"
        )
        yield Finding("host.memory", Verdict.CLEAN, text)


def _shm(scene: Scene) -> Iterator[Finding]:
    host = scene.host
    floor = SHM_SHARED if scene.need.shared else SHM_ALONE
    if host.shm_free is None:
        text, step = "there is no /dev/shm", "mount a tmpfs on /dev/shm"
        yield Finding("host.shm", Verdict.DIRTY, text, size(floor), step)
    elif host.shm_free < floor:
        stale = sum(file.bytes for file in host.stale)
        text = f"{size(host.shm_free)} of {size(host.shm_total or 0)} free in /dev/shm"
        step = "docker run --shm-size 16g, or mount -o remount,size=16g /dev/shm"
        if stale:
            text += f", {size(stale)} of it in files of ended engines"
            step = "remove the files of ended engines (host.stale), or a larger /dev/shm"
        yield Finding("host.shm", Verdict.DIRTY, text, f"{size(floor)} free", step)


def _stale(scene: Scene) -> Iterator[Finding]:
    files = scene.host.stale
    if not files:
        return
    total = sum(file.bytes for file in files)
    names = " ".join(str(file.path) for file in files[:_SHOWN])
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    count = "1 file" if len(files) == 1 else f"{len(files)} files"
    text = f"{count} of ended engines in /dev/shm, {size(total)}: {names}{more}"
    outside = "" if scene.processes.host else ", if nothing outside of this container uses them"
    every = " ".join(shlex.quote(str(file.path)) for file in files)
    step = f"rm {every if len(files) <= _LISTED else 'them'}{outside}"
    verdict = Verdict.DIRTY if total > STALE_MOST else Verdict.CLEAN
    yield Finding("host.stale", verdict, text, f"at most {size(STALE_MOST)}", step)


def _disk(scene: Scene) -> Iterator[Finding]:
    host, need = scene.host, scene.need
    if need.disk is None:
        return
    place, wanted = host.disk_place, need.disk_bytes + DISK_RESERVE
    step = "free some space, or another --out"
    if host.disk_problem:
        text = f"{place} {host.disk_problem}"
        yield Finding("host.disk", Verdict.DIRTY, text, size(wanted), "another --out")
    elif host.disk_free is None:
        text = f"{place or need.disk} cannot be asked"
        yield Finding("host.disk", Verdict.UNKNOWN, text, size(wanted), step)
    elif host.disk_free < wanted:
        text = f"{size(host.disk_free)} free in {place}"
        yield Finding("host.disk", Verdict.DIRTY, text, size(wanted), step)
    elif host.disk_files is not None and host.disk_files < need.disk_files:
        text = f"{host.disk_files} files can be made in {place}"
        yield Finding("host.disk", Verdict.DIRTY, text, f"{need.disk_files}", step)


def _files(scene: Scene) -> Iterator[Finding]:
    limit = scene.host.open_files
    if limit is not None and limit < OPEN_FILES:
        text, step = f"{limit} open files at most", f"ulimit -n {64 * OPEN_FILES}"
        yield Finding("host.files", Verdict.DIRTY, text, f"{OPEN_FILES} or more", step)


def _ports(scene: Scene) -> Iterator[Finding]:
    host = scene.host
    if host.loopback:
        text = f"no port can be had on 127.0.0.1: {host.loopback}"
        step = "ip link set lo up; ss -s"
        yield Finding("host.ports", Verdict.DIRTY, text, "a free port", step)
    for taken in host.taken:
        step = f"ss -ltnp | grep {taken.rpartition('=')[2]}; unset {taken.partition('=')[0]}"
        text = f"{taken} is in use"
        yield Finding("host.ports", Verdict.DIRTY, text, "named ports that are free", step)


CHECKS = (
    Check(
        "host.memory",
        "memory that can still be had, within the limit of the container",
        "the estimate for all workers",
        "a container's limit kills a worker in the middle of the load, however much the host has",
        _memory,
    ),
    Check(
        "host.shm",
        "free space in /dev/shm",
        f"{size(SHM_SHARED)} for several workers, {size(SHM_ALONE)} for one",
        "NCCL takes about 10 MB for each pair of workers and vLLM's broadcast ring up to 240 MiB; "
        "a container has 64 MB where nobody asked for more",
        _shm,
    ),
    Check(
        "host.stale",
        f"files of ended engines in /dev/shm ({', '.join(f'{name}*' for name in STALE_NAMES)}), "
        "held by nobody, over 60 s old",
        f"at most {size(STALE_MOST)}; fewer are told",
        "they count as used memory and fill /dev/shm until a start fails",
        _stale,
    ),
    Check(
        "host.disk",
        "the folder where the output goes: may it be written to, space, files",
        "the estimate and 64 MiB",
        "a full disk ends a run in its last hours",
        _disk,
    ),
    Check(
        "host.files",
        "limit of open files",
        f"{OPEN_FILES} or more",
        "64 mapped shards, NCCL's sockets and torch's own files need some hundred in each worker",
        _files,
    ),
    Check(
        "host.ports",
        "ports: any on the loopback interface, those of VLLM_PORT and MASTER_PORT",
        "free",
        "workers meet on a local port; a named one that is taken fails after the imports",
        _ports,
    ),
)
