"""Every failure a user can meet, in one shape.

A failure says what was expected, what was found, where, and what to run next.
Its ``id`` is stable: scripts may match on it. Its class decides the exit code.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """Exit codes of the ``harness`` command, by kind of outcome."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNKNOWN = 4
    ENGINE_FAILED = 5
    INTERRUPTED = 130


@dataclass(frozen=True)
class Failure:
    """One failure as a fact, ready for printing or for JSON.

    Attributes:
        id: Stable dotted id, such as ``prompts.broken-line``.
        expected: What should have been there.
        found: What was there instead.
        where: The file, line, id or process that it concerns.
        next: The next command or step for the user.
    """

    id: str
    expected: str
    found: str
    where: str
    next: str

    def __str__(self) -> str:
        return (
            f"{self.id}\n"
            f"  expected: {self.expected}\n"
            f"  found:    {self.found}\n"
            f"  where:    {self.where}\n"
            f"  next:     {self.next}"
        )

    def to_json(self) -> dict[str, str]:
        """Return the failure as a flat JSON object."""
        return asdict(self)


class HarnessError(Exception):
    """Base of all errors that reach a user; carries a :class:`Failure`."""

    exit_code: ClassVar[ExitCode] = ExitCode.CHECK_FAILED

    def __init__(
        self,
        id: str,
        *,
        expected: str,
        found: str,
        where: str,
        next: str,
        **details: Any,
    ) -> None:
        self.failure = Failure(id=id, expected=expected, found=found, where=where, next=next)
        self.details = details
        super().__init__(str(self.failure))


class CheckFailed(HarnessError):
    """A check of content failed: data on disk or in flight is not what it must be."""

    exit_code = ExitCode.CHECK_FAILED


class UsageError(HarnessError):
    """The request itself cannot be right: a bad option, file or layer id."""

    exit_code = ExitCode.USAGE


class Refused(HarnessError):
    """The request is well formed, but starting it here would fail or destroy something."""

    exit_code = ExitCode.REFUSED


class NotComparable(HarnessError):
    """The question cannot be answered with what is here (unknown version, other hardware)."""

    exit_code = ExitCode.UNKNOWN


class EngineFailed(HarnessError):
    """The engine process died, hung or reported an error."""

    exit_code = ExitCode.ENGINE_FAILED
