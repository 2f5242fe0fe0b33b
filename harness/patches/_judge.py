"""Common ways to judge: by a signature, recorded or real; by the value of a probe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from harness.patches._patch import NotNeeded, Unfit
from harness.patches._state import State, Status, broken, needed
from harness.seams import UNKNOWN, Call, Surface, bind_call

Rule = Callable[[inspect.Signature], State]


def by_signature(seam: str, rule: Rule) -> Callable[[Surface], State]:
    """Judge a release by the recorded signature of a seam."""

    def judge(surface: Surface) -> State:
        entry = surface.entry(seam)
        if entry.missing:
            return broken(f"{seam} is gone; {entry.where} is what is left")
        signature = entry.parsed()
        return broken(f"{seam} is a {entry.kind} now") if signature is None else rule(signature)

    return judge


def by_probe(
    probe: str, answers: Mapping[str, State], *, also: Callable[[Surface], State] | None = None
) -> Callable[[Surface], State]:
    """Judge a release by a probe's value.

    Args:
        probe: Its name.
        answers: Value -> state; any other value is ``broken``.
        also: Asked where the answer is ``needed``.
    """

    def judge(surface: Surface) -> State:
        value = surface.probe(probe)
        said = "has a shape not known" if value == UNKNOWN else f"says {value}"
        state = answers.get(value, broken(f"the probe {probe} {said}", unsure=True))
        return also(surface) if also and state.status is Status.NEEDED else state

    return judge


def binds(signature: inspect.Signature, call: Call, why: str) -> State:
    """``needed`` where the repaired call would get through, else ``broken``."""
    problem = bind_call(signature, call)
    if problem is None:
        return needed(why)
    kind, subject = problem
    return broken(f"{kind.replace('-', ' ')}: {subject}")


def method(seam: str, call: Call, why: str) -> Callable[[Surface], State]:
    """Needed on every release where the method can be called as the patch calls it."""
    return by_signature(seam, lambda signature: binds(signature, call, why))


def there(*seams: str, why: str) -> Callable[[Surface], State]:
    """Needed on every release that has these seams."""

    def judge(surface: Surface) -> State:
        gone = [seam for seam in seams if surface.entry(seam).missing]
        return broken(f"gone: {', '.join(gone)}") if gone else needed(why)

    return judge


def ask(rule: Rule, original: Any) -> None:
    """Judge the real object in hand.

    Raises:
        NotNeeded: It has not the fault.
        Unfit: Its shape is not known.
    """
    try:
        signature = inspect.signature(original)
    except (TypeError, ValueError) as error:
        raise Unfit(f"no signature: {error}") from None
    state = rule(signature)
    if state.status is Status.OBSOLETE:
        raise NotNeeded(state.reason)
    if state.status is Status.BROKEN:
        raise Unfit(f"{state.reason}; it takes {signature}")


def without_self(rule: Rule) -> Rule:
    """The same rule for a method in hand, whose signature begins with ``self``."""

    def ruled(signature: inspect.Signature) -> State:
        return rule(signature.replace(parameters=list(signature.parameters.values())[1:]))

    return ruled
