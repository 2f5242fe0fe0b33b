"""``harness verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._options import Json
from harness.cli._outcome import command, print_json
from harness.dataset import verify as dataset_verify
from harness.errors import ExitCode


@command
def verify(
    out: Annotated[Path, typer.Argument(help="Folder of an extraction.")],
    json_output: Json = False,
) -> None:
    """Check a dataset: manifest, checksums, shapes, content of every sample."""
    report = dataset_verify.verify(out)
    if json_output:
        print_json(report.to_json())
    elif report.ok:
        Console().print(f"[green]ok[/]: {report.checked} samples")
    else:
        table = Table(title=f"{len(report.bad)} faults in {report.checked} samples")
        for column in ("id", "check", "expected", "found"):
            table.add_column(column, overflow="fold")
        for bad in report.bad[:50]:
            table.add_row(*map(escape, (bad.id, bad.check, bad.expected, bad.found)))
        Console().print(table)
    if not report.ok:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))
