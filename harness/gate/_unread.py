"""A candidate with modules that cannot be read: nobody knows, and nothing is called missing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.gate.scale import Verdict
from harness.gate.verdict import GenerationVerdict, SeamStatus, SeamVerdict
from harness.seams import SEAMS, UNKNOWN, Consumer, Surface
from harness.standing import needs_of

if TYPE_CHECKING:
    from harness.gate.static import StaticAnswer

_HINT = "look at this file: another Python may parse it, or it is damaged"


def assumed(known: Surface, candidate: Surface) -> Surface:
    """Return the candidate as if what cannot be read were as it was.

    What is found to be broken then is broken whatever the files hold that cannot be read.
    """
    entries = {id: known.entry(id) for id in candidate.unread if id in candidate.entries}
    probes = {name: known.probe(name) for name in candidate.unread if name in candidate.probes}
    return replace(
        candidate,
        entries={**candidate.entries, **entries},
        probes={**candidate.probes, **probes},
        unread={},
    )


def told(answer: StaticAnswer, candidate: Surface, counted: Collection[Consumer]) -> StaticAnswer:
    """Say of an answer to :func:`assumed` what nobody can tell.

    Args:
        answer: The answer.
        candidate: What cannot be read of it.
        counted: Consumers that decide over their generation.
    """
    unread = candidate.unread
    doubted = {one: said for one in Consumer if (said := _reasons(one, candidate))}
    return replace(
        answer,
        generations=tuple(_generation(one, answer, doubted, counted) for one in answer.generations),
        consumers=tuple(
            replace(one, verdict=Verdict.UNKNOWN)
            if one.verdict.green and Consumer(one.name) in doubted
            else one
            for one in answer.consumers
        ),
        seams=tuple(
            _seam(one, unread[one.id]) if one.id in unread else one for one in answer.seams
        ),
        probes=tuple(
            replace(
                one,
                found=UNKNOWN,
                breaks=(),
                doubts=tuple(
                    str(by) for by in Consumer if one.name in {need.probe for need in needs_of(by)}
                ),
            )
            if one.name in unread
            else one
            for one in answer.probes
        ),
    )


def _reasons(consumer: Consumer, candidate: Surface) -> tuple[str, ...]:
    touched = [
        seam.id
        for seam in SEAMS
        if any(use.by is consumer and not use.optional for use in seam.uses)
    ]
    asked = [need.probe for need in needs_of(consumer)]
    said = (candidate.unread[one] for one in (*touched, *asked) if one in candidate.unread)
    return tuple(dict.fromkeys(said))


def _generation(
    one: GenerationVerdict,
    answer: StaticAnswer,
    doubted: dict[Consumer, tuple[str, ...]],
    counted: Collection[Consumer],
) -> GenerationVerdict:
    mine = [
        Consumer(consumer.name)
        for consumer in answer.consumers
        if consumer.generation == one.name and Consumer(consumer.name) in counted
    ]
    reasons = dict.fromkeys(text for by in mine for text in doubted.get(by, ()))
    if not reasons:
        return one
    verdict = Verdict.UNKNOWN if one.verdict.green else one.verdict
    return replace(one, verdict=verdict, reasons=(*one.reasons, *reasons))


def _seam(one: SeamVerdict, said: str) -> SeamVerdict:
    seam = next(seam for seam in SEAMS if seam.id == one.id)
    by = {str(use.by) for use in seam.uses if not use.optional}
    return replace(
        one, status=SeamStatus.CHANGED, found=said, hint=_HINT, breaks=(), doubts=tuple(sorted(by))
    )
