"""The tables of ``harness baseline``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.baseline import Baseline, Finding, Origin, Status, Stored, bounds

_STYLE = {
    Status.OK: "green",
    Status.WARN: "yellow",
    Status.RED: "bold red",
    Status.UNCONFIRMED: "yellow",
    Status.NOT_COMPARABLE: "yellow",
}


def show(stored: Sequence[Stored]) -> None:
    """Print every baseline: what it belongs to, its figures, and whether it is a floor."""
    console = Console()
    for each in stored:
        entry = each.baseline
        console.print(_title(entry), style="bold", markup=False, highlight=False, soft_wrap=True)
        console.print(_figures(entry))
        _line(console, "key", str(entry.key))
        for name, text in _told(each).items():
            _line(console, name, text)
        console.print()
    if not stored:
        console.print("no baseline is recorded")


def show_judged(judged: Sequence[tuple[Baseline, Sequence[Finding]]]) -> None:
    """Print findings, key by key."""
    console = Console()
    for measured, findings in judged:
        _line(console, "key", str(measured.key))
        table = Table()
        for column in ("figure", "status", "expected", "found", "why"):
            table.add_column(column, overflow="fold")
        for one in findings:
            status = f"[{_STYLE[one.status]}]{one.status}[/]"
            row = (one.name, one.expected, one.found, one.why)
            name, expected, found, why = map(escape, row)
            table.add_row(name, status, expected, found, why)
        console.print(table)


def _figures(entry: Baseline) -> Table:
    table = Table()
    for column in ("figure", "runs", "median", "MAD", "spread", "warn below", "floor"):
        left = column in ("figure", "runs")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for runs in entry.figures.values():
        row = [runs.name, runs.show_runs(), runs.show()]
        # Of one figure that somebody told there is neither deviation nor spread.
        several = len(runs.runs) > 1
        row += [runs.show(runs.mad), f"{runs.spread:.1%}"] if several else ["", ""]
        limits = bounds(runs)
        row += [runs.show(limits.warn), runs.show(limits.floor)] if entry.usable else ["", "none"]
        table.add_row(*map(escape, row))
    return table


def _title(entry: Baseline) -> str:
    what = f"{entry.key.gpus or '?'} x {entry.key.gpu or '?'}, {entry.key.capture or '?'}"
    if entry.origin is Origin.REPORTED:
        return f"{what}: reported, not measured here; never a floor"
    day = f"measured {entry.date}" if entry.date else "measured"
    if entry.usable:
        return f"{what}: {day}"
    why = dict.fromkeys(_REASONS[problem.failure.id] for problem in entry.problems)
    return f"{what}: {day}; no floor: {', '.join(why)}"


_REASONS = {
    "baseline.unknown-key": "its key is not wholly known",
    "baseline.no-figures": "no figures",
    "baseline.too-few-runs": "too few runs",
    "baseline.spread": "runs too far apart",
}


def _told(stored: Stored) -> dict[str, str]:
    entry = stored.baseline
    said = dict(entry.seen)
    if entry.load_seconds is not None:
        said["load"] = f"{entry.load_seconds:,.0f} s"
    if entry.memory_bytes:
        sizes = ", ".join(f"{size / 2**30:.1f}" for size in entry.memory_bytes)
        said["memory"] = f"{sizes} GiB in use, by device"
    said |= {"note": entry.note, "source": entry.source, "file": stored.path.name}
    return {name: text for name, text in said.items() if text}


def _line(console: Console, name: str, text: str) -> None:
    console.print(f"  {name}: {text}", markup=False, highlight=False, soft_wrap=True)
