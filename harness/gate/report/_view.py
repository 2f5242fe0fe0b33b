"""What a report shows: sections of words, tables and plots, whatever they are written in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.gate.evidence import Evidence
from harness.gate.scale import RungResult
from harness.gate.verdict import GateResult, GenerationVerdict, SeamVerdict

# Token ids reach words through an engine's complaints; a report may be published.
_IDS = re.compile(r"\[\s*\d+(?:\s*,\s*\d+)+\s*\]|(?<=token )\d+|(?<=, not )\d+")

_NONE = "-"
_NO_ERRORS, _NO_SPEED = "no error by depth", "no ratio of files to plain prefill"


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        head: Names of the columns.
        rows: Cells.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Series:
    """One line of the error plot.

    Attributes:
        name: What it is.
        points: Depth -> largest relative error.
    """

    name: str
    points: Mapping[int, float]


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        title: Its heading.
        words: Paragraphs.
        table: A table, if any.
        series: Lines of a plot of errors by depth, if any.
    """

    title: str
    words: tuple[str, ...] = ()
    table: Table | None = None
    series: tuple[Series, ...] = ()


@dataclass(frozen=True)
class View:
    """A whole report.

    Attributes:
        title: The question.
        verdict: The answer.
        green: Whether it allows the upgrade.
        summary: The answer in a sentence.
        sections: Everything else, in order.
    """

    title: str
    verdict: str
    green: bool
    summary: str
    sections: tuple[Section, ...] = field(default=())


def view(
    result: GateResult,
    evidence: Sequence[Evidence] = (),
    *,
    prompts: Mapping[str, Sequence[int]] | None = None,
) -> View:
    """Arrange an answer of the gate.

    Args:
        result: The answer.
        evidence: What is recorded of the candidate's release; shown beside what was run.
        prompts: Prompts of the engine suite to show, name -> token ids. By default none, and
            no token id stands anywhere in the report.
    """
    known = result.known.release if result.known is not None else "nothing"
    own = [one for one in evidence if one.pair.vllm == result.candidate.release]
    sections = (
        _rungs(result),
        *(_generation(one, result) for one in result.generations),
        _seams(result),
        _probes(result),
        _patches(result),
        *_proofs(result, own),
        _environment(result),
        *_prompts(prompts),
    )
    shown = View(
        title=f"vLLM {known} to {result.candidate.release}",
        verdict=str(result.verdict),
        green=result.verdict.green,
        summary=(
            f"{result.candidate.build} {result.candidate.release} after {known}: "
            f"{result.verdict}, by rung {result.rung}, {result.date}"
        ),
        sections=sections,
    )
    return shown if prompts is not None else _without_ids(shown)


def _rungs(result: GateResult) -> Section:
    rows = tuple(
        (str(one.rung), str(one.status), f"{one.seconds:.1f} s" if one.ran else "-", one.reason)
        for one in result.rungs
    )
    return Section("Rungs", table=Table(("rung", "status", "time", "what it says"), rows))


def _generation(one: GenerationVerdict, result: GateResult) -> Section:
    needed = len(one.patches.needed)
    words = [f"{one.verdict}, by rung {one.rung}."]
    if needed or one.patches.broken:
        words.append(f"{needed} patches needed, {len(one.patches.broken)} of them broken.")
    words += [*one.reasons, *result.held_against(one.name)]
    return Section(f"Generation {one.number}: {one.name}", tuple(words))


def _seams(result: GateResult) -> Section:
    moved = sorted(result.moved, key=lambda one: (not one.breaks, one.id))
    if not moved:
        return Section("Seams", (f"All {len(result.seams)} hold.",))
    rows = tuple((one.id, str(one.status), one.known, one.found, _hint(one)) for one in moved)
    return Section(
        "Seams",
        (f"{len(moved)} of {len(result.seams)} are not as they were.",),
        Table(("seam", "status", "known", "found", "what to do"), rows),
    )


def _hint(one: SeamVerdict) -> str:
    parts = [one.hint] if one.hint else []
    if one.breaks:
        parts.append(f"breaks {', '.join(one.breaks)}")
    if one.repaired_by:
        parts.append(f"repaired by {', '.join(one.repaired_by)}")
    return "; ".join(parts)


def _probes(result: GateResult) -> Section:
    changed = [one for one in result.probes if one.changed or one.breaks or one.doubts]
    if not changed:
        return Section("Behaviour", (f"All {len(result.probes)} probes answer as they did.",))
    rows = tuple(
        (one.name, one.known, one.found, ", ".join((*one.breaks, *(f"{d}?" for d in one.doubts))))
        for one in changed
    )
    return Section(
        "Behaviour",
        (f"{len(changed)} of {len(result.probes)} probes tell of something.",),
        Table(("probe", "known", "found", "breaks"), rows),
    )


def _patches(result: GateResult) -> Section:
    rows = [
        (patch, state, one.patches.reasons.get(patch, ""))
        for one in result.generations
        for state, ids in (
            ("broken", one.patches.broken),
            ("needed, fits", one.patches.fits),
            ("obsolete", one.patches.obsolete),
        )
        for patch in ids
    ]
    if not rows:
        return Section("Patches", ("None is needed.",))
    return Section("Patches", table=Table(("patch", "state", "why"), tuple(rows)))


def _proofs(result: GateResult, evidence: Sequence[Evidence]) -> Iterator[Section]:
    rows: list[tuple[str, ...]] = []
    series: list[Series] = []
    for label, proofs in (*_climbed(result.rungs), *_recorded(evidence)):
        for proof in proofs:
            figures = proof.get("figures", {})
            rows.append((label, proof["capture"], proof["outcome"], *_figures(figures)))
            depths = figures.get("max_rel_err_by_depth", {})
            if depths:
                points = {int(depth): float(error) for depth, error in depths.items()}
                series.append(Series(f"{proof['capture']}, {label}", points))
    if not rows:
        said = f"No engine was run, and nothing is recorded: {_NO_ERRORS}, {_NO_SPEED}."
        yield Section("Rows and speed", (said,))
        return
    measured = any(row[-1] != _NONE for row in rows)
    yield Section(
        "Rows and speed",
        () if measured else (f"There is {_NO_SPEED}: no run here measured one.",),
        Table(
            ("run", "capture", "outcome", "largest error", "rows", "files to plain prefill"),
            tuple(rows),
        ),
    )
    if series:
        yield Section(
            "Error by depth",
            ("Largest relative error against Hugging Face transformers, float32.",),
            series=tuple(series),
        )
    else:
        yield Section("Error by depth", (f"There is {_NO_ERRORS}: no run here measured one.",))


def _climbed(rungs: Iterable[RungResult]) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    for one in rungs:
        proofs = one.figures.get("proofs") if one.ran else None
        if proofs:
            yield f"rung {one.rung}, now", proofs


def _recorded(
    evidence: Iterable[Evidence],
) -> Iterator[tuple[str, Sequence[Mapping[str, Any]]]]:
    for one in evidence:
        label = f"rung {one.rung}, {one.date}, {one.pair.hardware}"
        yield label, [proof.to_json() for proof in one.proofs]


def _figures(figures: Mapping[str, Any]) -> tuple[str, str, str]:
    error, rows = figures.get("max_rel_err"), figures.get("rows")
    ratio = figures.get("files_to_plain_ratio")
    wrong = figures.get("wrong_rows", 0)
    return (
        _NONE if error is None else f"{error:.1e}",
        _NONE if rows is None else f"{rows - wrong} of {rows} right",
        _NONE if ratio is None else f"{ratio:.2f}",
    )


def _environment(result: GateResult) -> Section:
    sides = [("candidate", result.candidate)]
    if result.known is not None:
        sides.append(("known good", result.known))
    rows = [(name, side.release, side.build, side.digest[:23]) for name, side in sides]
    words = []
    for rung in result.rungs:
        pair = rung.figures.get("pair")
        if pair:
            words.append(f"{rung.rung}: " + ", ".join(f"{k} {v}" for k, v in pair.items()))
        done = rung.figures.get("done")
        if done:
            words.append(f"{rung.rung}, what had to be done: {'; '.join(done)}")
    return Section(
        "Environment", tuple(words), Table(("", "release", "read from", "digest"), tuple(rows))
    )


def _prompts(prompts: Mapping[str, Sequence[int]] | None) -> Iterator[Section]:
    if prompts:
        rows = tuple(
            (name, str(len(ids)), " ".join(map(str, ids))) for name, ids in prompts.items()
        )
        yield Section("Prompts", table=Table(("prompt", "tokens", "ids"), rows))


def _without_ids(shown: View) -> View:
    def clean(text: str) -> str:
        return _IDS.sub("...", text)

    return View(
        shown.title,
        shown.verdict,
        shown.green,
        clean(shown.summary),
        tuple(
            Section(
                one.title,
                tuple(map(clean, one.words)),
                None
                if one.table is None
                else Table(
                    one.table.head,
                    tuple(tuple(map(clean, row)) for row in one.table.rows),
                ),
                one.series,
            )
            for one in shown.sections
        ),
    )
