"""``harness baseline``: record figures by key, show them, hold others against them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.baseline import (
    Baseline,
    Finding,
    Stored,
    admit,
    bounds,
    compare,
    differences,
    exit_code,
    find,
    judge,
    packed,
    read_folders,
    write,
)
from harness.baseline.sources import read_evidence, read_source
from harness.cli import _baseline_tables as tables
from harness.cli._outcome import command, log, print_json
from harness.data import data_path
from harness.errors import NotComparable, UsageError

app = typer.Typer(
    help="Recorded speeds by key (card, stack, model, capture), and the floors that follow.",
    no_args_is_help=True,
)
_SOURCE = "figures.jsonl, evidence.json or bundle.tar.gz of a GPU run."
_FOLDERS = (
    "Folder with baselines of your own, stronger than those that come along; may be repeated."
)

Folders = Annotated[list[Path] | None, typer.Option("--folder", help=_FOLDERS)]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.callback()
def baseline() -> None:
    """Group the baseline commands."""


@app.command("record")
@command
def record(
    source: Annotated[Path, typer.Argument(help=_SOURCE)],
    out: Annotated[Path, typer.Option(help="Folder for the files, one a key.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Put them in the place of recorded ones.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Turn the figures of a GPU run into baselines.

    Refused (exit code 3), and nothing written: fewer than 5 runs of a figure, runs that lie
    further apart than 5 % of their median, a key that is not wholly known, or a baseline of
    this key that is there already.
    """
    found = [admit(each) for each in read_source(source)]
    paths = [write(out, each, replace=replace) for each in found]
    if json_output:
        print_json({"written": [str(path) for path in paths]})
        return
    for each, path in zip(found, paths, strict=True):
        log.print(f"{path}\n  {each.key}", markup=False, soft_wrap=True)


@app.command("show")
@command
def show(folder: Folders = None, json_output: Json = False) -> None:
    """Show every baseline with its floors, and what is only told or rests on too few runs."""
    stored = [*_stored(folder), *_evidence()]
    if json_output:
        print_json({"baselines": [_entry(each) for each in stored]})
    else:
        tables.show(stored)


@app.command("check")
@command
def check(
    source: Annotated[Path, typer.Argument(help=_SOURCE)],
    rerun: Annotated[
        Path | None, typer.Option(help="Figures of a second run; without them nothing is red.")
    ] = None,
    folder: Folders = None,
    json_output: Json = False,
) -> None:
    """Hold the figures of a GPU run against the baselines of their keys.

    Exit codes: 0 all compared, none too slow; 1 too slow, and the rerun too, or other kernels;
    4 something has no baseline of its key, or a rerun must confirm it.
    """
    stored = _stored(folder)
    again = () if rerun is None else read_source(rerun)
    judged = [(each, _judge(each, stored, again)) for each in read_source(source)]
    code = exit_code(finding for _, findings in judged for finding in findings)
    if json_output:
        print_json({"exit": int(code), "keys": [_judged(*each) for each in judged]})
    else:
        tables.show_judged(judged)
    raise typer.Exit(int(code))


def _judge(
    measured: Baseline, stored: Sequence[Stored], again: Sequence[Baseline]
) -> list[Finding]:
    recorded = find(measured.key, stored)
    entry = recorded.entry
    findings = [
        judge(
            name,
            runs.runs,
            entry.series(name) if entry else None,
            rerun=_rerun(measured, name, again),
            reason=recorded.reason,
        )
        for name, runs in measured.figures.items()
    ]
    return findings + list(compare(entry.seen, measured.seen) if entry else ())


def _rerun(
    measured: Baseline, name: str, again: Sequence[Baseline]
) -> Callable[[], Sequence[float]] | None:
    """Return what gives the second run of the same key and figure; None where there is none."""
    for each in again:
        if not differences(measured.key, each.key) and name in each.figures:
            runs = each.figures[name].runs
            return lambda: runs
    return None


def _stored(folders: Sequence[Path] | None) -> tuple[Stored, ...]:
    for folder in folders or ():
        if not folder.is_dir():
            raise UsageError(
                "baseline.no-folder",
                expected="a folder with baselines",
                found="nothing" if not folder.exists() else "a file",
                where=str(folder),
                next="harness baseline record FIGURES --out DIR makes one",
            )
    return read_folders([*(folders or ()), packed()])


def _evidence() -> list[Stored]:
    """Return the figures in the evidence files; what is only shown must not stop the command."""
    try:
        folder = data_path("evidence")
    except NotComparable:
        return []
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found += [Stored(path, each) for each in read_evidence(path)]
        except (OSError, ValueError) as error:
            log.print(f"{path}: not read: {error}", markup=False, soft_wrap=True)
    return found


def _entry(stored: Stored) -> dict[str, Any]:
    entry = stored.baseline
    figures = {}
    for name, runs in entry.figures.items():
        said: dict[str, Any] = {"runs": list(runs.runs), "median": runs.median}
        said |= {"mad": runs.mad, "spread": runs.spread}
        if entry.usable:
            limits = bounds(runs)
            said |= {"floor": limits.floor, "warn": limits.warn}
        figures[name] = said
    return {
        **entry.to_json(),
        "file": str(stored.path),
        "usable": entry.usable,
        "problems": [problem.failure.to_json() for problem in entry.problems],
        "figures": figures,
    }


def _judged(measured: Baseline, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "key": measured.key.to_json(),
        "findings": [finding.to_json() for finding in findings],
    }
