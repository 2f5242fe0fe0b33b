"""The ladder: rung after rung, each with a climber, and the answer that they make together.

A climber imports its rung when it climbs: rung static answers before the others are imported.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import NotComparable
from harness.gate.candidate import Candidate
from harness.gate.scale import Rung, RungResult, RungStatus, Verdict, worst
from harness.gate.static import StaticAnswer, judge
from harness.gate.verdict import GateResult, GenerationVerdict


@dataclass(frozen=True)
class Task:
    """What a rung is given.

    Attributes:
        candidate: What is asked about.
        static: What its files alone said.
        python: Interpreter of an environment that has the candidate; None: make one.
    """

    candidate: Candidate
    static: StaticAnswer
    python: Path | None


Climber = Callable[[Task], RungResult]
"""Climbs one rung; a rung that cannot be climbed here is ``skipped``, with its reason."""


def _mock(task: Task) -> RungResult:
    from harness.gate import mock

    return mock.climb(task.candidate.surface)


def _cpu(task: Task) -> RungResult:
    from harness.gate import cpu

    release = task.candidate.side.release
    with tempfile.TemporaryDirectory(prefix="harness-cpu-") as folder:
        try:
            place = cpu.own_workplace(Path(folder))
        except NotComparable as error:
            return RungResult(Rung.CPU, RungStatus.SKIPPED, error.failure.found)
        result, _ = cpu.climb(release, place, python=task.python)
    return result


def _with_gpus(rung: Rung, model: Path | None, ranks: int | None) -> Climber:
    """Return the climber of rung gpu or full with what the user named."""

    def climber(task: Task) -> RungResult:
        from harness.gate import gpu

        options = gpu.GpuOptions(model, ranks or (gpu.RANKS if rung is Rung.FULL else 1))
        return gpu.climb(rung, task.candidate.surface, task.python, options)

    return climber


def climbers_with(
    *, slice_: Path | None = None, model: Path | None = None, ranks: int | None = None
) -> Mapping[Rung, Climber]:
    """Return who climbs what.

    Args:
        slice_: Checkpoint for rung gpu; None: the plugin's tiny model.
        model: Checkpoint for rung full; None: it is skipped.
        ranks: GPUs that share a model; None: 1 for rung gpu, 8 for rung full.
    """
    return {
        Rung.MOCK: _mock,
        Rung.CPU: _cpu,
        Rung.GPU: _with_gpus(Rung.GPU, slice_, ranks),
        Rung.FULL: _with_gpus(Rung.FULL, model, ranks),
    }


CLIMBERS: Mapping[Rung, Climber] = climbers_with()
"""Rungs above static, as they are climbed where nobody names a model."""


def run_gate(
    candidate: Candidate,
    known: Candidate | None,
    *,
    rungs: Iterable[Rung] = (Rung.STATIC,),
    python: Path | None = None,
    climbers: Mapping[Rung, Climber] = CLIMBERS,
) -> GateResult:
    """Answer whether a candidate may take the place of a known good release.

    Args:
        candidate: The release in question.
        known: The known good one.
        rungs: What to climb; static is always first.
        python: Interpreter of an environment that has the candidate, for rung cpu and above.
        climbers: Who climbs which rung.

    Raises:
        NotComparable: ``gate.nothing-known``, ``seams.not-recorded``.
    """
    if known is None:
        raise NotComparable(
            "gate.nothing-known",
            expected="a recorded release that is not newer than the candidate",
            found="none",
            where=candidate.side.release,
            next="name one that works for you: harness gate CANDIDATE --from RELEASE",
        )
    started = time.monotonic()
    static = judge(known.surface, candidate.surface, candidate.hints)
    reason = _older(candidate, known)
    if reason:
        static = _incomparable(static, reason)
    results = [_static(static, time.monotonic() - started)]
    wanted = set(rungs)
    task = Task(candidate, static, python or candidate.python)
    for rung in list(Rung)[1:]:
        results.append(_climb(rung, task, wanted, climbers, results))
    return GateResult(
        candidate=candidate.side,
        known=known.side,
        generations=tuple(
            _owed(_rest(one, results, reason), results, wanted) for one in static.generations
        ),
        consumers=static.consumers,
        seams=static.seams,
        probes=static.probes,
        rungs=tuple(results),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _older(candidate: Candidate, known: Candidate) -> str:
    this, that = candidate.version, known.version
    if this is not None and that is not None and this < that:
        return (
            f"{candidate.side.release} is older than {known.side.release}, which is known good: "
            "what holds there says nothing of an older release"
        )
    return ""


def _incomparable(static: StaticAnswer, reason: str) -> StaticAnswer:
    return replace(
        static,
        generations=tuple(
            replace(one, verdict=Verdict.NOT_COMPARABLE, reasons=(reason,))
            for one in static.generations
        ),
        consumers=tuple(replace(one, verdict=Verdict.NOT_COMPARABLE) for one in static.consumers),
    )


def _static(static: StaticAnswer, seconds: float) -> RungResult:
    verdicts = {one.name: one.verdict for one in static.generations}
    said = worst(verdicts.values())
    status = {
        Verdict.REGRESSED: RungStatus.FAILED,
        Verdict.UNKNOWN: RungStatus.UNKNOWN,
        Verdict.NOT_COMPARABLE: RungStatus.UNKNOWN,
    }.get(said, RungStatus.PASSED)
    moved = sum(one.status != "holds" for one in static.seams)
    changed = sum(one.changed for one in static.probes)
    reason = (
        f"{len(static.seams)} seams, {moved} not as they were; "
        f"{len(static.probes)} probes, {changed} changed"
    )
    return RungResult(Rung.STATIC, status, reason, seconds, verdicts=verdicts)


def _climb(
    rung: Rung,
    task: Task,
    wanted: set[Rung],
    climbers: Mapping[Rung, Climber],
    before: list[RungResult],
) -> RungResult:
    if rung not in wanted:
        return RungResult(rung, RungStatus.SKIPPED, "not asked for")
    failed = [one.rung for one in before if one.status is RungStatus.FAILED]
    if failed:
        return RungResult(rung, RungStatus.SKIPPED, f"rung {failed[0]} failed")
    if rung not in climbers:
        return RungResult(rung, RungStatus.SKIPPED, "nothing here can climb it")
    return climbers[rung](task)


def _rest(
    generation: GenerationVerdict, results: list[RungResult], reason: str
) -> GenerationVerdict:
    """Let the highest rung that says something of a generation decide.

    A higher rung can settle what lower ones could not tell, or find what they could not see; it
    cannot make good what they found. One that ran and cannot tell leaves nothing green: an engine
    that hangs looks like that. A mock that cannot tell says nothing, as one that was not made.
    """
    verdict, rung = generation.verdict, generation.rung
    reasons = list(generation.reasons)
    for one in results[1:]:
        said = one.verdicts.get(generation.name) if one.ran else None
        if said is None or reason or (said is Verdict.UNKNOWN and one.rung is Rung.MOCK):
            continue
        rung = one.rung
        if said is Verdict.UNKNOWN and verdict.green:
            verdict = said
            reasons.append(f"rung {one.rung}: {one.reason}")
            continue
        if said is Verdict.REGRESSED and verdict is not Verdict.NOT_COMPARABLE:
            verdict = said
            reasons.append(f"rung {one.rung}: {one.reason}")
        elif said.green and verdict is Verdict.UNKNOWN and one.rung is not Rung.MOCK:
            verdict = Verdict.OK_WITH_PATCHES if generation.patches.needed else Verdict.OK
            reasons.append(f"rung {one.rung}: {one.reason}")
    return replace(generation, verdict=verdict, rung=rung, reasons=tuple(reasons))


def _owed(
    generation: GenerationVerdict, results: list[RungResult], wanted: set[Rung]
) -> GenerationVerdict:
    """Let nothing be green while a rung that was asked for was not climbed.

    Whoever names a rung wants its proof; an exit code of 0 without it is taken for it.
    """
    owed = [one for one in results if one.rung in wanted and not one.ran]
    if not owed or not generation.verdict.green:
        return generation
    reasons = tuple(f"rung {one.rung} was asked for and not climbed: {one.reason}" for one in owed)
    return replace(generation, verdict=Verdict.UNKNOWN, reasons=(*generation.reasons, *reasons))
