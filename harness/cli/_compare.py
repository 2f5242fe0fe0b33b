"""``harness compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._options import Json
from harness.cli._outcome import command, print_json, say
from harness.dataset.compare import Comparison
from harness.dataset.compare import compare as compare_folders
from harness.errors import ExitCode


@command
def compare(
    one: Annotated[Path, typer.Argument(metavar="A", help="Folder of the data set you trust.")],
    two: Annotated[Path, typer.Argument(metavar="B", help="Folder of the other one.")],
    json_output: Json = False,
) -> None:
    """May samples of two engines be mixed? Two datasets of the same prompts, per depth.

    Row errors are held to the noise recorded for the dtype and device
    (docs/compare.md). Exit code 0: same within noise; 1: not; 4: not comparable (another
    model, other depths, dtype, prompts or device).
    """
    found = compare_folders(one, two)
    if json_output:
        print_json(found.to_json())
    else:
        _show(found)
    if not found.same:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


def _show(found: Comparison) -> None:
    drift, console = found.drift, Console()
    table = Table(title=escape(f"A: {found.one.engine}    B: {found.two.engine}"))
    for column in ("depth", "rows", "equal", "median", "p99", "max", f"over {drift.noise.row:g}"):
        table.add_column(column, justify="right")
    for one in drift.depths:
        equal = f"{one.equal / one.rows:.0%}" if one.rows else "-"
        figures = (f"{value:.1e}" for value in (one.median, one.p99, one.max))
        style = "red" if one.faults else None
        table.add_row(
            str(one.depth), str(one.rows), equal, *figures, str(one.differing), style=style
        )
    console.print(table)
    for depth in drift.depths:
        for fault in depth.faults:
            console.print(f"[red]depth {depth.depth}[/]: {escape(fault)}")
    if drift.other_samples:
        names = escape(", ".join(drift.others))
        console.print(f"[red]{drift.other_samples} samples hold other rows[/]: {names}")
    if found.only_one or found.only_two:
        say(f"only in A: {len(found.only_one)} samples; only in B: {len(found.only_two)}")
    say(f"noise of {found.dtype} on {found.one.device}: {drift.noise.source}")
    word = (
        "[green]same within noise[/]: they may be mixed"
        if found.same
        else "[red]not the same[/]: do not mix them"
    )
    console.print(f"{word} ({drift.samples} samples, {found.dtype}, {found.one.device})")
