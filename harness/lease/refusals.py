"""What stands against a lease, a session or a call, each told in one way."""

from __future__ import annotations

from collections.abc import Collection

from harness.errors import EngineFailed, Refused, UsageError
from harness.extraction.plan import EnginePlan
from harness.lease.condition import judge
from harness.lease.record import Book, Client, Lease, Unreadable


def name_taken(other: Lease) -> Refused:
    """Say that a name has a lease already."""
    return Refused(
        "lease.name-taken",
        expected="a name without a lease",
        found=str(judge(other)),
        where=f"lease `{other.name}` of {other.owner}, keeper pid {other.keeper.pid}",
        next=f"pytest --hs-attach={other.name} uses it; harness engine stop {other.name} ends it; "
        "or choose another --name",
    )


def unreadable(record: Unreadable) -> Refused:
    """Say that the record of a name cannot be read, so that nothing may be done to its lease."""
    return Refused(
        "lease.unreadable",
        expected="a record that can be read",
        found=record.why,
        where=str(record.path),
        next=record.next,
    )


def require_free(name: str, book: Book) -> None:
    """Hold a name to be free for a new lease; one that has ended is in nobody's way.

    Raises:
        Refused: ``lease.name-taken``, ``lease.unreadable``.
    """
    other = book.read(name)
    if other is not None:
        if judge(other).condition.live:
            raise name_taken(other)
        return
    for record in book.unreadable(name):
        raise unreadable(record)


def not_loaded(reason: str, lease: Lease) -> EngineFailed:
    """Say that the time was over before the engine was loaded."""
    return EngineFailed(
        "lease.expired",
        expected="an engine that is loaded before its lease ends",
        found=reason,
        where=f"lease `{lease.name}`",
        next="harness engine start with a longer --for",
    )


def untrusted(plan: EnginePlan) -> Refused:
    """Say that the engine would run code of the checkpoint."""
    return Refused(
        "lease.remote-code",
        expected="leave to run code that lies in the checkpoint: this vLLM does, even for text",
        found="no --trust-remote-code",
        where=str(plan.model.path),
        next="read the checkpoint's *.py files, then add --trust-remote-code; or use a newer vLLM",
    )


def changed(names: list[str], lease: Lease) -> Refused:
    """Say which files changed while the engine was loaded from them."""
    return Refused(
        "lease.changed-while-loading",
        expected="files that stay as they are while an engine is loaded from them",
        found="; ".join(names),
        where=f"lease `{lease.name}`",
        next="start it again",
    )


def ended(name: str, reason: str) -> EngineFailed:
    """Say that a lease has ended under its client."""
    return EngineFailed(
        "lease.ended",
        expected="a lease that lasts as long as the session",
        found=reason,
        where=f"lease `{name}`",
        next="harness engine status",
    )


def keeper_failed(error: BaseException) -> EngineFailed:
    """Say that the keeper itself has met what it did not foresee."""
    return EngineFailed(
        "lease.keeper-failed",
        expected="a keeper that forwards calls",
        found=f"{type(error).__name__}: {error}",
        where="the lease's keeper",
        next="report this",
    )


def busy(name: str, holder: Client) -> Refused:
    """Say who uses a lease."""
    return Refused(
        "lease.busy",
        expected="one session at a time",
        found=f"the lease is used by {holder}",
        where=f"lease `{name}`",
        next="wait for it to end: harness engine status",
    )


def refuse_op(name: str, op: str, forbidden: Collection[str]) -> UsageError:
    """Say that an op is not forwarded, or that another one still runs."""
    where = f"lease `{name}`"
    if op in forbidden:
        return UsageError(
            "lease.not-forwarded",
            expected="a call that leaves the engine as it is",
            found=repr(op),
            where=where,
            next="harness engine stop ends a lease",
        )
    return UsageError(
        "host.busy",
        expected="one call at a time",
        found=f"{op!r} while another one waits",
        where=where,
        next="wait for the first call",
    )
