"""Use a leased engine where it is what a fresh load would give; otherwise say what differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from harness.capture.protocol import Loaded
from harness.capture.session import Deadlines, EngineSession
from harness.errors import HarnessError, NotComparable, Refused
from harness.extraction.options import EngineOptions
from harness.extraction.plan import EnginePlan
from harness.lease import asked
from harness.lease.client import AttachedHost
from harness.lease.condition import Condition, Judged, judge
from harness.lease.identity import ASKED, Difference, Identity, identity_of
from harness.lease.record import Book, Lease
from harness.lease.stop import unknown

ANY: Final = "auto"
"""Name that stands for the only lease there is."""

_SHOWN = 12


@dataclass(frozen=True)
class Attached:
    """A leased engine as a session has it.

    Attributes:
        lease: The lease, as it was when the session attached.
        plan: How the engine was loaded, decided anew here and found the same.
        session: Attached by its :meth:`~harness.capture.session.EngineSession.attach`.
        loaded: What the engine said after its load.
    """

    lease: Lease
    plan: EnginePlan
    session: EngineSession
    loaded: Loaded


def find(name: str, book: Book | None = None) -> Judged:
    """Return a lease by name, or by ``auto`` the only one that lives.

    Raises:
        UsageError: ``lease.unknown``.
        NotComparable: ``lease.several``.
    """
    book = book or Book()
    if name != ANY:
        lease = book.read(name)
        if lease is None:
            raise unknown(name, book)
        return judge(lease)
    found = [judge(lease) for lease in book.all()]
    live = [one for one in found if one.condition.live] or found
    if not live:
        raise unknown(name, book)
    if len(live) > 1:
        names = ", ".join(one.lease.name for one in live)
        raise NotComparable(
            "lease.several",
            expected="one lease, or the name of one",
            found=names,
            where=str(book.folder),
            next=f"name one: --hs-attach={live[0].lease.name}",
        )
    return live[0]


def attach(
    name: str,
    given: Mapping[str, Any],
    *,
    deadlines: Deadlines | None = None,
    book: Book | None = None,
) -> Attached:
    """Make a session on a leased engine; nothing is sent to it yet.

    Args:
        name: The lease, or ``auto``.
        given: What the user has set, by names of :data:`harness.lease.asked.OPTIONS`; what is
            left out is taken from the lease.
        deadlines: Of the session's calls.
        book: Where records lie.

    Raises:
        Refused: ``lease.not-ready``, ``lease.differs`` with everything that differs.
        HarnessError: As :func:`find`, or as the plan of such an engine raises.
    """
    book = book or Book()
    found = find(name, book)
    lease = found.lease
    # Whether it is in use still, its keeper knows best.
    if found.condition not in (Condition.READY, Condition.BUSY):
        raise _not_ready(found)
    # It is loaded and proved: the gate's look at its files has nothing to add.
    options = asked.from_json({**lease.options, **given}, deadlines, skip_gate=True)
    plan = asked.plan_for(options, lease.spool)
    differences = _identity(lease).differences(identity_of(plan))
    if differences:
        raise _differs(lease, [_in_words(one, lease, options) for one in differences])
    loaded = _loaded(lease)
    session = EngineSession(AttachedHost(lease, book), plan.session)
    return Attached(lease, plan, session, loaded)


def _in_words(one: Difference, lease: Lease, options: EngineOptions) -> Difference:
    """Put the words with which layers were asked for before what they mean."""
    if (one.part, one.name) != (ASKED, "layers"):
        return one
    words = (str(lease.options["layers"]), options.layers)
    return replace(one, lease=f"{words[0]} ({one.lease})", here=f"{words[1]} ({one.here})")


def _identity(lease: Lease) -> Identity:
    try:
        return Identity.from_json(json.loads(lease.identity.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise _broken(lease, lease.identity, str(error)) from error


def _loaded(lease: Lease) -> Loaded:
    try:
        return Loaded(**(lease.reply or {}))
    except TypeError as error:
        raise _broken(lease, lease.folder, str(error)) from error


def _not_ready(found: Judged) -> HarnessError:
    lease = found.lease
    restart = f"harness engine start --name {lease.name} --model {lease.options.get('model')} ..."
    next = {
        Condition.LOADING: f"wait until it is ready: harness engine status; log: {lease.log}",
        Condition.ELSEWHERE: "run there, or start another lease here",
    }.get(found.condition, restart)
    return Refused(
        "lease.not-ready",
        expected="a lease that is ready",
        found=str(found),
        where=f"lease `{lease.name}`",
        next=next,
    )


def _differs(lease: Lease, differences: list[Difference]) -> Refused:
    told = [str(one) for one in differences[:_SHOWN]]
    more = len(differences) - len(told)
    if more > 0:
        told.append(f"and {more} more")
    name = lease.name
    return Refused(
        "lease.differs",
        expected="an engine as a load would make it now",
        found="; ".join(told),
        where=f"lease `{name}`",
        next="undo that, or leave out the option; or load anew: harness engine stop "
        f"{name}, then harness engine start --name {name} ...; or run without --hs-attach",
        differences=[str(one) for one in differences],
    )


def _broken(lease: Lease, path: Path, found: str) -> HarnessError:
    return Refused(
        "lease.broken-record",
        expected="what the engine was loaded from",
        found=found,
        where=str(path),
        next=f"harness engine stop {lease.name}, then start it again",
    )
