"""What the supervisor does about each danger: kill, warn, or nothing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from harness.errors import UsageError
from harness.host.supervision.loads import clock
from harness.host.supervision.phases import Phase


class Danger(StrEnum):
    """What can doom an engine that still lives."""

    LINE = "line"
    STALL = "stall"
    MEMORY = "memory"
    SHM = "shm"
    CODE = "code"


class Action(StrEnum):
    """What is done about it."""

    KILL = "kill"
    WARN = "warn"
    OFF = "off"


DEFAULT_ACTIONS: Final[Mapping[Danger, Action]] = MappingProxyType(
    {
        Danger.LINE: Action.KILL,
        Danger.STALL: Action.KILL,
        Danger.MEMORY: Action.KILL,
        Danger.SHM: Action.KILL,
        # The engine may be right all the same: an edit of a comment is one, too.
        Danger.CODE: Action.WARN,
    }
)

STALL_S: Final = 300.0
"""Seconds without a log line, CPU, storage or GPU use; a slow shard keeps storage busy."""


@dataclass(frozen=True)
class LoadProgress:
    """Where a load is.

    Attributes:
        phase: Its phase, such as ``weights``.
        where: The phase with its count, such as ``weights 3 of 64``.
        done: Shards that are loaded, 0 outside of ``weights``.
        total: Shards in all, 0 where that is not known.
        seconds: Since the load began.
        expected_s: How long it should take in all; None where nothing is known.
        eta_s: Seconds that are left; None where nothing is known.
        why: Where the expectation comes from.
        new_phase: Whether this is the first report of the phase.
    """

    phase: str
    where: str
    done: int
    total: int
    seconds: float
    expected_s: float | None
    eta_s: float | None
    why: str
    new_phase: bool

    @property
    def text(self) -> str:
        """Where the load is, such as ``loading: weights 3 of 64, 2:10, about 17:50 left``."""
        left = ""
        if self.eta_s and self.eta_s >= 1:
            left = f", about {clock(self.eta_s)} left"
        elif self.expected_s and self.seconds > self.expected_s and self.phase != Phase.READY:
            left = f", longer than the expected {clock(self.expected_s)}"
        return f"loading: {self.where}, {clock(self.seconds)}{left}"


def _ignore_progress(progress: LoadProgress) -> None:
    """Nobody listens."""


def _ignore_warning(text: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Supervision:
    """What the supervisor is told.

    Attributes:
        actions: What to do about each danger.
        stall_s: Seconds without any sign of life that are a stall.
        on_progress: Hears about a load: at each phase and shard, and once a second.
        on_warning: Hears each warning once, as one sentence.
    """

    actions: Mapping[Danger, Action] = field(default_factory=lambda: DEFAULT_ACTIONS)
    stall_s: float = STALL_S
    on_progress: Callable[[LoadProgress], None] = _ignore_progress
    on_warning: Callable[[str], None] = _ignore_warning


def read_actions(text: str, where: str = "--supervise") -> Mapping[Danger, Action]:
    """Read ``danger=action,...`` over the defaults; one action alone goes for every danger.

    Raises:
        UsageError: ``supervise.bad-policy``.
    """
    actions = dict(DEFAULT_ACTIONS)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        try:
            action = Action((value if equals else name).strip())
            actions.update(
                {Danger(name.strip()): action} if equals else dict.fromkeys(Danger, action)
            )
        except ValueError:
            raise UsageError(
                "supervise.bad-policy",
                expected=f"DANGER=ACTION,... with a danger of {', '.join(Danger)} and an action "
                f"of {', '.join(Action)}; or one action for all",
                found=repr(part),
                where=where,
                next="see docs/supervisor.md",
            ) from None
    return MappingProxyType(actions)
