"""End a lease, and verify that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

from filelock import FileLock

from harness.errors import EngineFailed, HarnessError, Refused, UsageError
from harness.host import processes
from harness.host.processes import Process
from harness.lease.condition import Condition, Judged, judge
from harness.lease.keeper import LOCK_S
from harness.lease.place import forget
from harness.lease.record import Book, Lease, check_name
from harness.lease.refusals import unreadable

_PAUSE_S = 0.02
_KILLED_S = 15.0
_MARGIN_S = 30.0


@dataclass(frozen=True)
class Stopped:
    """What a stop has done.

    Attributes:
        lease: The lease that was.
        was: What it was before.
        ended: Processes that were there before and are gone.
        seconds: How long that took.
    """

    lease: Lease
    was: Condition
    ended: int
    seconds: float


def stop(
    name: str, *, force: bool = False, deadline_s: float = 60.0, book: Book | None = None
) -> Stopped:
    """End a lease and remove what it left, also where it had ended before.

    Args:
        name: The lease.
        force: Also where a session uses it.
        deadline_s: For an orderly end; then the keeper is killed, and its reaper ends the rest.
        book: Where records lie.

    Raises:
        UsageError: ``lease.bad-name``, ``lease.unknown``.
        Refused: ``lease.unreadable``, ``lease.in-use``, ``lease.elsewhere``.
        EngineFailed: ``lease.survivors``.
    """
    check_name(name, "NAME", "harness engine status")
    book = book or Book()
    begun = time.monotonic()
    lease = book.read(name)
    if lease is None:
        raise unknown(name, book, next="harness engine status")
    found = judge(lease)
    _admit(found, force)
    tree = _tree(lease)
    if found.condition.live:
        processes.send(lease.keeper, signal.SIGTERM)
        if _left([lease.keeper], deadline_s):
            processes.send(lease.keeper, signal.SIGKILL)
    survivors = _left(tree, _KILLED_S + (_MARGIN_S if found.condition.live else 0.0))
    with contextlib.suppress(ChildProcessError):
        os.waitpid(lease.keeper.pid, os.WNOHANG)
    if survivors:
        raise EngineFailed(
            "lease.survivors",
            expected="no process of the lease is left",
            found=", ".join(f"{p.name or 'process'} (pid {p.pid})" for p in survivors),
            where=f"lease `{name}`",
            next="they do not end on SIGKILL (a stuck driver or disk); look at them with ps",
        )
    with FileLock(book.lock, timeout=LOCK_S):
        now = book.read(name)
        if now is not None and now.keeper == lease.keeper:
            forget(now, book)
    return Stopped(lease, found.condition, len(tree), time.monotonic() - begun)


def unknown(name: str, book: Book, *, next: str = "") -> HarnessError:
    """Say that there is no lease of a name, and which there are; or that its record is broken.

    Args:
        name: The name.
        book: Where records lie.
        next: What to do; by default to start one where there is none.
    """
    for record in book.unreadable(name):
        return unreadable(record)
    names = [lease.name for lease in book.all()]
    return UsageError(
        "lease.unknown",
        expected=f"one of {', '.join(names)}" if names else "a lease",
        found=f"no lease `{name}`",
        where=str(book.folder),
        next=next or ("harness engine status" if names else "harness engine start --model DIR"),
    )


def _admit(found: Judged, force: bool) -> None:
    lease = found.lease
    if found.condition is Condition.ELSEWHERE:
        raise Refused(
            "lease.elsewhere",
            expected="a lease of this machine",
            found=f"one {found.why}",
            where=f"lease `{lease.name}`",
            next="run the command there",
        )
    if found.condition is Condition.BUSY and not force:
        raise Refused(
            "lease.in-use",
            expected="a lease that nobody uses",
            found=f"it is used by {found.why}",
            where=f"lease `{lease.name}`",
            next=f"wait for it to end, or harness engine stop {lease.name} --force",
        )


def _tree(lease: Lease) -> list[Process]:
    """Return keeper, engine and everything below them that runs now."""
    roots = [p for p in (lease.keeper, lease.engine) if p is not None and processes.alive(p)]
    below = processes.descendants([process.pid for process in roots])
    return list(dict.fromkeys([*roots, *(process for process in below if not process.ended)]))


def _left(tree: Iterable[Process], seconds: float) -> list[Process]:
    """Wait until none of them runs, at most so long; return those that still do."""
    until = time.monotonic() + seconds
    left = [process for process in tree if processes.alive(process)]
    while left and time.monotonic() < until:
        time.sleep(_PAUSE_S)
        left = [process for process in left if processes.alive(process)]
    return left
