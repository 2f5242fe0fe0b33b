"""Which release was the first where a chosen check turns?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from packaging.version import InvalidVersion, Version

from harness.errors import NotComparable, UsageError
from harness.gate.scale import Verdict, worst
from harness.gate.static import GENERATIONS, StaticAnswer, judge
from harness.gate.verdict import ConsumerVerdict
from harness.seams import SEAMS, Consumer, Surface
from harness.seams.probes import PROBES

VERDICT = "verdict"
Check = Callable[[str], str]
"""Answers for a release; the check has turned where the answer is not like the first one."""


@dataclass(frozen=True)
class Turn:
    """Where a check turns.

    Attributes:
        check: Its name.
        good: The release with the first answer.
        bad: The release with another one.
        before: The answer on ``good``.
        first: The first release with another answer.
        last_good: The release before it.
        after: The answer there.
        asked: Release -> answer, of all releases that were asked.
    """

    check: str
    good: str
    bad: str
    before: str
    first: str
    last_good: str
    after: str
    asked: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**vars(self), "asked": dict(self.asked)}


def between(good: str, bad: str, every: Sequence[str]) -> list[str]:
    """Return the releases from ``good`` to ``bad``, both included, oldest first.

    Raises:
        UsageError: ``bisect.not-a-release`` or ``bisect.order``.
    """
    try:
        low, high = Version(good), Version(bad)
    except InvalidVersion as error:
        raise UsageError(
            "bisect.not-a-release",
            expected="two recorded releases, such as 0.16.0 0.32.0, and no files",
            found=str(error),
            where="--bisect",
            next="harness gate --bisect 0.16.0 0.32.0",
        ) from error
    if not low < high:
        raise UsageError(
            "bisect.order",
            expected="GOOD older than BAD",
            found=f"{good}, then {bad}",
            where="--bisect",
            next=f"harness gate --bisect {bad} {good}" if low != high else _apart(good, every),
        )
    known = {Version(one): one for one in every}
    inner = sorted(one for one in known if low < one < high)
    return [known.get(low, good), *(known[one] for one in inner), known.get(high, bad)]


def _apart(release: str, every: Sequence[str]) -> str:
    others = [one for one in every if Version(one) != Version(release)]
    if not others:
        return "name two releases"
    # The newest other one: what is asked is mostly how far it goes on.
    good, bad = sorted((release, others[-1]), key=Version)
    return f"harness gate --bisect {good} {bad}"


def first_turn(name: str, releases: Sequence[str], check: Check, *, every: bool = False) -> Turn:
    """Find the first release where the answer is not that of the first release.

    Args:
        name: Of the check, for the answer.
        releases: Oldest first; the check must have turned on the last one.
        check: Asked at most once a release.
        every: Ask them in order, for a check that costs nothing and may turn back; else halve
            the distance, for one that takes minutes.

    Raises:
        NotComparable: ``bisect.never-turns``: the last release answers as the first one.
    """
    asked: dict[str, str] = {}

    def ask(place: int) -> str:
        release = releases[place]
        if release not in asked:
            asked[release] = check(release)
        return asked[release]

    def turned(place: int) -> bool:
        return _alike(ask(place)) != _alike(ask(0))

    low, high = 0, len(releases) - 1
    if every:
        high = next((place for place in range(1, high + 1) if turned(place)), high)
    if not turned(high):
        both = ask(high) == ask(0)
        raise NotComparable(
            "bisect.never-turns",
            expected=f"another answer on {releases[-1]} than on {releases[0]}",
            found=f"{name} is {ask(0)!r} on both"
            if both
            else f"{name} is {ask(0)!r}, then {ask(high)!r}, both green",
            where=f"{len(asked)} releases asked",
            next="choose another --check, or releases further apart",
        )
    while high - low > 1:
        middle = (low + high) // 2
        if turned(middle):
            high = middle
        else:
            low = middle
    return Turn(
        check=name,
        good=releases[0],
        bad=releases[-1],
        before=ask(0),
        first=releases[high],
        last_good=releases[low],
        after=ask(high),
        asked={one: asked[one] for one in releases if one in asked},
    )


def static_check(name: str, surface_of: Callable[[str], Surface], good: str) -> Check:
    """Return a check of rung static by its name.

    Args:
        name: ``verdict``; a generation (``patched``, ``native``); a consumer, such as
            ``speculators-0.4.0``; a probe; or a seam.
        surface_of: Reads a release.
        good: The release that everything is held against.

    Raises:
        UsageError: ``bisect.no-check``.
    """
    known = surface_of(good)

    def answer(release: str) -> StaticAnswer:
        return judge(known, surface_of(release))

    if name == VERDICT:
        return lambda release: str(worst(one.verdict for one in answer(release).generations))
    if name in GENERATIONS:
        return lambda release: str(_named(answer(release).generations, name).verdict)
    if name in set(Consumer):
        return lambda release: _binds(_named(answer(release).consumers, name))
    if name in PROBES:
        return lambda release: surface_of(release).probe(name)
    if name in {seam.id for seam in SEAMS}:
        return lambda release: str(next(s.status for s in answer(release).seams if s.id == name))
    raise UsageError(
        "bisect.no-check",
        expected=f"{VERDICT}, {', '.join(GENERATIONS)}, a consumer, a probe or a seam",
        found=name,
        where="--check",
        next="harness surface show 0.16.0 lists probes and seams",
    )


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def _named(every: Iterable[N], name: str) -> N:
    return next(one for one in every if one.name == name)


def _binds(consumer: ConsumerVerdict) -> str:
    return "binds" if consumer.binds else "does not bind"


def _alike(answer: str) -> str:
    """Both green verdicts are one answer: a patch that is needed is no regression."""
    return str(Verdict.OK) if answer == Verdict.OK_WITH_PATCHES else answer
