"""``--hs-attach``: the session's settings beside those of a lease."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError
from harness.settings import COMMAND_LINE, DEFAULT, LEASE, Settings

if TYPE_CHECKING:
    from harness.lease.condition import Judged
    from harness.lease.record import Lease


def fill(settings: Settings, here: Path) -> Settings:
    """Take what the user has not set from the lease, so that it need not be said twice.

    A lease that is not there changes nothing: only a test that wants the engine fails.

    Args:
        settings: What was set.
        here: Folder of the command line.

    Raises:
        pytest.UsageError: ``--hs-attach`` has taken a file for the name of a lease.
    """
    if settings.attach is None:
        return settings
    found = _find(settings.attach)
    if isinstance(found, HarnessError):
        given = settings.source("attach") == COMMAND_LINE
        if given and settings.attach != "auto" and (here / settings.attach).exists():
            raise pytest.UsageError(
                f"--hs-attach took {settings.attach!r} for the name of a lease; "
                "write --hs-attach=NAME, or put --hs-attach behind the files"
            )
        return settings
    from harness.lease.asked import from_json

    options = from_json(found.lease.options)
    taken = {
        name: getattr(options, name)
        for name in found.lease.options
        if settings.source(name) == DEFAULT
    }
    sources = {**settings.sources, **dict.fromkeys(taken, LEASE)}
    return replace(settings, **taken, sources=MappingProxyType(sources))


def given(settings: Settings) -> dict[str, Any]:
    """Return what the user has set of an engine's options; the rest is the lease's to say."""
    from harness.lease.asked import OPTIONS

    return {
        name: getattr(settings, name)
        for name in OPTIONS
        if settings.source(name) not in (DEFAULT, LEASE)
    }


def header(settings: Settings) -> list[str]:
    """Return the header's line about the lease; none where none was asked for."""
    if settings.attach is None:
        return []
    found = _find(settings.attach)
    if isinstance(found, HarnessError):
        failure = found.failure
        return [f"harness attach: {failure.found}; next: {failure.next}"]
    return [f"harness attach: {found.lease.name}, {found}{_age(found.lease)}"]


def told(lease: Lease) -> str:
    """Return what the summary says of a lease that the session has used."""
    return (
        f"attached to {lease.name} ({_age(lease).lstrip(', ')}, load {lease.loads} of this lease)"
    )


def _find(name: str) -> Judged | HarnessError:
    from harness.lease.attach import find

    try:
        return find(name)
    except HarnessError as error:
        return error


def _age(lease: Lease) -> str:
    return "" if lease.loaded is None else f", loaded {_since(lease)} ago"


def _since(lease: Lease) -> str:
    from harness.lease.duration import show

    return show(time.time() - (lease.loaded or lease.started))
