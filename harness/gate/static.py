"""Rung static: a candidate's files against a known good release's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.gate._changes import Difference, describe, differences
from harness.gate._hints import Hints
from harness.gate._unread import assumed, told
from harness.gate.scale import Rung, Verdict, worst
from harness.gate.verdict import (
    ConsumerVerdict,
    GenerationVerdict,
    PatchVerdicts,
    ProbeVerdict,
    SeamStatus,
    SeamVerdict,
)
from harness.patches import Patch, State, Status
from harness.seams import SEAMS, Consumer, Finding, Seam, Surface
from harness.standing import Standing, patch_states, standing

GENERATIONS: Mapping[str, tuple[int, tuple[Consumer, ...]]] = {
    "patched": (
        1,
        (
            Consumer.SPECULATORS_0_3,
            Consumer.PATCHES,
            Consumer.PATCHED,
            Consumer.SPECULATORS_0_4,
        ),
    ),
    "native": (2, (Consumer.NATIVE, Consumer.HS_CONNECTORS)),
}
"""Name -> number and consumers."""

_NEWS_ONLY = (Consumer.SPECULATORS_0_4, Consumer.HS_CONNECTORS)
"""The harness runs neither: what breaks them is told, and decides nothing."""

_WORST_LAST = (SeamStatus.HOLDS, SeamStatus.CHANGED, SeamStatus.MOVED, SeamStatus.MISSING)


@dataclass(frozen=True)
class StaticAnswer:
    """What the files alone say.

    Attributes:
        generations, consumers, seams, probes: As in ``GateResult``.
    """

    generations: tuple[GenerationVerdict, ...]
    consumers: tuple[ConsumerVerdict, ...]
    seams: tuple[SeamVerdict, ...]
    probes: tuple[ProbeVerdict, ...]


@dataclass(frozen=True)
class _Pair:
    """Both releases as one consumer meets them."""

    known: Standing
    found: Standing
    seams: tuple[SeamVerdict, ...]
    consumer: Consumer

    @property
    def new(self) -> tuple[Finding, ...]:
        """Findings that the known release did not give, or for which a patch was there."""
        before = {(one.seam, one.key) for one in self.known.open}
        return tuple(one for one in self.found.open if (one.seam, one.key) not in before)

    @property
    def verdict(self) -> Verdict:
        if not self.known.works or self.known.doubts:
            # Never worked there: the candidate may only be better.
            return Verdict.OK if self._fine else Verdict.NOT_COMPARABLE
        if self.found.problems or any(self.consumer in one.breaks for one in self.seams):
            return Verdict.REGRESSED
        if self.found.doubts or any(self.consumer in one.doubts for one in self.seams):
            return Verdict.UNKNOWN
        return Verdict.OK

    @property
    def _fine(self) -> bool:
        return self.found.works and not self.found.doubts

    def reasons(self) -> tuple[str, ...]:
        if self.verdict is Verdict.NOT_COMPARABLE:
            said = "; ".join((*self.known.problems, *self.known.doubts)[:2])
            return (f"{self.consumer} did not work before either: {said}",)
        return tuple(
            f"{self.consumer}: {text}"
            for text in (
                *self.found.problems,
                *(
                    f"{one.id} {one.status}: {one.known}, now {one.found}"
                    for one in self.seams
                    if self.consumer in one.breaks
                    and not any(f.seam == one.id for f in self.found.open)
                ),
                *self.found.doubts,
                *(
                    f"{one.id}: {one.known}, now {one.found}, which only an engine can judge"
                    for one in self.seams
                    if self.consumer in one.doubts
                ),
            )
        )


def judge(known: Surface, candidate: Surface, hints: Hints | None = None) -> StaticAnswer:
    """Hold a candidate against a known good release.

    Args:
        known: What the known good release offers.
        candidate: What the candidate offers.
        hints: Searches the candidate's files; only what is in the surface is told without it.

    Raises:
        NotComparable: ``seams.not-recorded``: a surface older than the inventory.
    """
    if candidate.unread:
        answer = judge(known, assumed(known, candidate), hints)
        return told(answer, candidate, set(Consumer) - set(_NEWS_ONLY))
    states = patch_states(candidate)
    before = patch_states(known)
    standings = {
        consumer: (standing(known, consumer, before), standing(candidate, consumer, states))
        for consumer in Consumer
    }
    ask = hints or Hints(None)
    seams = tuple(_seam(seam, known, candidate, standings, ask) for seam in SEAMS)
    pairs = {
        consumer: _Pair(old, new, seams, consumer) for consumer, (old, new) in standings.items()
    }
    return StaticAnswer(
        generations=tuple(
            _generation(name, number, [pairs[one] for one in consumers], states)
            for name, (number, consumers) in GENERATIONS.items()
        ),
        consumers=tuple(
            _consumer(name, pairs[one])
            for name, (_, consumers) in GENERATIONS.items()
            for one in consumers
        ),
        seams=seams,
        probes=_probes(known, candidate, pairs.values()),
    )


def _generation(
    name: str, number: int, pairs: list[_Pair], states: Mapping[Patch, State]
) -> GenerationVerdict:
    run = [pair for pair in pairs if pair.consumer not in _NEWS_ONLY]
    verdict = worst(pair.verdict for pair in run)
    patches = _patches(states) if number == 1 else PatchVerdicts()
    if verdict is Verdict.OK and patches.needed:
        verdict = Verdict.OK_WITH_PATCHES
    reasons = [text for pair in run for text in pair.reasons()]
    reasons += [
        f"{pair.consumer}, which the harness does not run, no longer works: {text}"
        for pair in pairs
        if pair.consumer in _NEWS_ONLY and pair.verdict is Verdict.REGRESSED
        for text in [pair.reasons()[0].partition(": ")[2]]
    ]
    return GenerationVerdict(name, number, verdict, Rung.STATIC, tuple(reasons), patches)


def _patches(states: Mapping[Patch, State]) -> PatchVerdicts:
    def ids(*wanted: Status) -> tuple[str, ...]:
        return tuple(patch.id for patch, state in states.items() if state.status in wanted)

    return PatchVerdicts(
        needed=ids(Status.NEEDED, Status.BROKEN),
        fits=ids(Status.NEEDED),
        obsolete=ids(Status.OBSOLETE),
        broken=ids(Status.BROKEN),
        reasons={patch.id: state.reason for patch, state in states.items()},
    )


def _consumer(generation: str, pair: _Pair) -> ConsumerVerdict:
    verdict = pair.verdict
    if verdict is Verdict.OK and pair.found.repaired:
        verdict = Verdict.OK_WITH_PATCHES
    return ConsumerVerdict(
        name=str(pair.consumer),
        generation=generation,
        verdict=verdict,
        binds=not pair.found.findings,
        findings=tuple(one.reason_at_seam for one in pair.found.findings),
    )


def _probes(known: Surface, candidate: Surface, pairs: Iterable[_Pair]) -> tuple[ProbeVerdict, ...]:
    concerned = {
        name: (
            tuple(str(p.consumer) for p in pairs_ if p.found.probes.get(name) is False),
            tuple(str(p.consumer) for p in pairs_ if p.found.probes.get(name) is True),
        )
        for pairs_ in [[pair for pair in pairs if pair.verdict is not Verdict.NOT_COMPARABLE]]
        for name in candidate.probes
    }
    return tuple(
        ProbeVerdict(name, known.probe(name), candidate.probe(name), *concerned[name])
        for name in sorted(candidate.probes)
    )


def _seam(
    seam: Seam,
    known: Surface,
    candidate: Surface,
    standings: Mapping[Consumer, tuple[Standing, Standing]],
    hints: Hints,
) -> SeamVerdict:
    old, new = known.entry(seam.id), candidate.entry(seam.id)
    found = differences(seam, old, new)
    fresh = [one for consumer in standings for one in _fresh(seam, *standings[consumer])]
    if not found and not fresh:
        return SeamVerdict(seam.id, SeamStatus.HOLDS, describe(old), describe(new))
    breaks = {str(one.by) for one in fresh if one not in standings[one.by][1].repaired}
    doubts: set[str] = set()
    for difference in found:
        concerned = {str(u.by) for u in difference.uses or seam.uses if not u.optional}
        breaks |= concerned if difference.breaks else set()
        doubts |= concerned if difference.doubtful else set()
    repaired = {
        patch for one in fresh if (patch := standings[one.by][1].repaired.get(one)) is not None
    }
    status = max([d.status for d in found] + [_status(one) for one in fresh], key=_WORST_LAST.index)
    return SeamVerdict(
        seam.id,
        status,
        known=_said([d.known for d in found]) or describe(old),
        found=_said([d.found for d in found] or [one.reason for one in fresh]),
        hint=_hint(seam, old.paths, found, fresh, hints),
        breaks=tuple(sorted(breaks)),
        repaired_by=tuple(sorted(repaired)),
        doubts=tuple(sorted(doubts - breaks)),
    )


def _fresh(seam: Seam, known: Standing, found: Standing) -> list[Finding]:
    """Findings at a seam that the known release did not give, where it served the consumer."""
    now = [one for one in found.findings if one.seam == seam.id]
    if not now or any(one.seam == seam.id for one in known.open):
        return []
    before = {one.key for one in known.findings if one.seam == seam.id}
    return [one for one in now if one.key not in before]


def _status(finding: Finding) -> SeamStatus:
    if finding.kind == "missing":
        return SeamStatus.MISSING
    return SeamStatus.MOVED if finding.kind == "moved" else SeamStatus.CHANGED


def _said(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _hint(
    seam: Seam,
    paths: tuple[str, ...],
    found: tuple[Difference, ...],
    fresh: list[Finding],
    hints: Hints,
) -> str:
    told: list[str] = []
    for difference in found:
        if difference.status is SeamStatus.MISSING:
            told.append(hints.of_name(paths[0] if paths else seam.paths[0]))
        elif difference.status is SeamStatus.MOVED:
            told.append(f"use {difference.found}")
        elif difference.subject == "owner":
            told.append(f"{difference.found} does something else under this name: look at both")
        elif difference.subject == "kind":
            told.append(f"it was a {difference.known} and is a {difference.found}")
        elif "=" in difference.known or difference.subject == "default":
            told.append("vLLM decides otherwise where nothing is passed; pass it if it matters")
        elif difference.subject == "what it returns":
            told.append("look at what the callers do with the result")
        else:
            told.append(f"{difference.subject} changed")
    told += [
        hints.of_argument(seam, one)
        for one in fresh
        if one.kind in ("needs-argument", "unknown-keyword", "too-many-arguments")
    ]
    told += [f"it is {one.found} now" for one in fresh if one.kind in ("other-kind", "unreadable")]
    return _said(told)
