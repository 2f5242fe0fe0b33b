"""The seam between waiting for an engine and judging it: whoever waits lets a watcher look.

The watcher runs in the thread that waits, a few times a second, and never touches the socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.host.log import Log
from harness.host.processes import Process


@dataclass(frozen=True)
class Call:
    """One call that is waited for.

    Attributes:
        op: Its operation; ``start`` for the greeting.
        begun: When it began, on the monotonic clock.
        log: The engine's log.
        tree: Returns the engine's processes as they were seen last; cheap.
    """

    op: str
    begun: float
    log: Log
    tree: Callable[[], list[Process]]


@dataclass(frozen=True)
class Cut:
    """Why an engine is to be ended although it lives.

    Attributes:
        expected: What should have been.
        found: What was found instead, with what ending it now saves.
        next: What the user can do.
        details: Further facts for the error.
    """

    expected: str
    found: str
    next: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Watcher(Protocol):
    """Judges an engine while a call is waited for."""

    def begin(self, call: Call) -> None:
        """A call begins."""

    def look(self, now: float) -> Cut | None:
        """Look at the engine; what ends it. Called about four times a second."""

    def done(self, now: float) -> None:
        """The call has ended well."""

    def failed(self, now: float) -> Mapping[str, Any]:
        """The call has failed; return facts for its error, ``where`` being put into words."""

    def ended(self) -> str:
        """A cut engine's processes are gone: confirm what they held is back, in words."""


class Unwatched:
    """Watches nothing."""

    def begin(self, call: Call) -> None:
        """Ignore it."""

    def look(self, now: float) -> Cut | None:
        """Find nothing."""
        return None

    def done(self, now: float) -> None:
        """Ignore it."""

    def failed(self, now: float) -> Mapping[str, Any]:
        """Add nothing."""
        return {}

    def ended(self) -> str:
        """Say nothing."""
        return ""
