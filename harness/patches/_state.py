"""What a patch is to one environment, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The four things that a patch can be to an environment."""

    NEEDED = "needed"
    """The fault is there, and the patch fits."""
    IN_FORCE = "in force"
    """It is applied in this process."""
    OBSOLETE = "obsolete"
    """The fault is not there: nothing to repair."""
    BROKEN = "broken"
    """What it holds on to is gone, or has a shape that it does not know."""


@dataclass(frozen=True)
class State:
    """A status with its reason.

    Attributes:
        status: What the patch is to the environment.
        reason: Why, in a few words.
        unsure: It is ``broken`` because nobody knows what the release does: its code has a shape
            that no probe knows.
    """

    status: Status
    reason: str
    unsure: bool = False

    def __str__(self) -> str:
        return f"{self.status}: {self.reason}"


def needed(reason: str) -> State:
    """The fault is there, and the patch fits."""
    return State(Status.NEEDED, reason)


def obsolete(reason: str) -> State:
    """There is nothing to repair."""
    return State(Status.OBSOLETE, reason)


def broken(reason: str, *, unsure: bool = False) -> State:
    """The patch would not hold, or nobody knows whether it would."""
    return State(Status.BROKEN, reason, unsure)


def in_force(reason: str) -> State:
    """The patch is applied."""
    return State(Status.IN_FORCE, reason)
