"""How the gate's answer is printed."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._widths import print_command, print_whole
from harness.gate.scale import RungStatus, Verdict
from harness.gate.verdict import GateResult, GenerationVerdict, SeamStatus

_COLOURS = {
    Verdict.OK: "bold green",
    Verdict.OK_WITH_PATCHES: "bold green",
    Verdict.REGRESSED: "bold red",
    Verdict.UNKNOWN: "bold yellow",
    Verdict.NOT_COMPARABLE: "bold yellow",
}
_RUNGS = {
    RungStatus.PASSED: "green",
    RungStatus.FAILED: "red",
    RungStatus.UNKNOWN: "yellow",
    RungStatus.SKIPPED: "dim",
}
_SEAMS = {SeamStatus.CHANGED: "yellow", SeamStatus.MOVED: "yellow", SeamStatus.MISSING: "red"}


def show(result: GateResult, console: Console | None = None) -> None:
    """Print an answer for people: what moved, what to do, and the verdict last."""
    out = console or Console(soft_wrap=False)
    _seams(out, result)
    changed = [one for one in result.probes if one.changed or one.breaks or one.doubts]
    if changed:
        table = _table("behaviour that changed", "probe", "known", "found", "decides for")
        for one in changed:
            table.add_row(
                *map(escape, (one.name, one.known, one.found, _named(one.breaks, one.doubts)))
            )
        out.print(table)
    if not print_whole(out, lambda whys: _rungs(result, whys)):
        for rung in result.rungs:
            print_command(out, f"{rung.rung}: ", rung.reason)
    for generation in result.generations:
        _generation(out, generation, result)
    known = result.known.release if result.known is not None else "nothing"
    colour = _COLOURS[result.verdict]
    out.print(
        f"vLLM {escape(result.candidate.release)} ({escape(result.candidate.build)}) after "
        f"{escape(known)}: [{colour}]{result.verdict}[/], by rung {result.rung}",
        soft_wrap=True,
    )


def _generation(out: Console, generation: GenerationVerdict, result: GateResult) -> None:
    colour = _COLOURS[generation.verdict]
    out.print(
        f"generation {generation.number}, {generation.name}: [{colour}]{generation.verdict}[/]",
        soft_wrap=True,
    )
    said = [
        f"{one.name} {one.verdict}" for one in result.consumers if one.generation == generation.name
    ]
    out.print(f"  {', '.join(said)}", soft_wrap=True, markup=False, highlight=False)
    patches = generation.patches
    for word, ids in (
        ("needed, and fit", patches.fits),
        ("broken", patches.broken),
        ("obsolete", patches.obsolete),
    ):
        if ids:
            out.print(f"  patches {word}: {', '.join(ids)}", soft_wrap=True, markup=False)
    for reason in (*generation.reasons, *result.held_against(generation.name)):
        out.print(f"  {reason}", soft_wrap=True, markup=False, highlight=False)


def _seams(out: Console, result: GateResult) -> None:
    for one in result.moved:
        repaired = f"repaired by {', '.join(one.repaired_by)}" if one.repaired_by else ""
        out.print(f"[{_SEAMS[one.status]}]{one.status}[/] [bold]{escape(one.id)}[/]")
        for word, text in (
            ("was", one.known),
            ("now", one.found),
            ("for", _named(one.breaks, one.doubts)),
            ("fix", "; ".join(filter(None, (repaired, one.hint)))),
        ):
            if text:
                out.print(f"  {word}: {text}", soft_wrap=True, markup=False, highlight=False)


def _rungs(result: GateResult, whys: bool) -> Table:
    table = _table("rungs", "rung", "status", *(["what it says"] if whys else []))
    for one in result.rungs:
        more = [escape(one.reason)] if whys else []
        table.add_row(one.rung, f"[{_RUNGS[one.status]}]{one.status}[/]", *more)
    return table


def _named(breaks: tuple[str, ...], doubts: tuple[str, ...]) -> str:
    return ", ".join((*breaks, *(f"{name}?" for name in doubts)))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
