"""``harness evidence``: what was proved of which pair."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._outcome import command, print_json
from harness.gate.compatibility import page
from harness.gate.evidence import PASSED, read_all
from harness.seams import recorded, releases

app = typer.Typer(help="What was proved, of which pair, on which rung.", no_args_is_help=True)

_FOLDER = "Folder of evidence; by default the one that comes with the harness."


@app.command("list")
@command
def list_(
    folder: Annotated[Path | None, typer.Option("--evidence", help=_FOLDER)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Show every file of evidence; a broken one is an error."""
    found = read_all(folder)
    if json_output:
        print_json({"evidence": [{"file": one.file, **one.to_json()} for one in found]})
        return
    table = Table(title=f"{len(found)} files of evidence")
    for column in ("vLLM", "device", "rung", "date", "capture", "outcome", "error"):
        table.add_column(column, overflow="fold")
    for one in found:
        for proof in one.proofs:
            error = proof.figures.get("max_rel_err")
            table.add_row(
                *(one.pair.vllm, escape(one.pair.hardware), one.rung, one.date),
                *(
                    proof.capture,
                    escape(proof.outcome if proof.outcome == PASSED else proof.reason),
                ),
                "" if error is None else f"{error:.1e}",
            )
    Console().print(table)


@app.command("table")
@command
def table(
    folder: Annotated[Path | None, typer.Option("--evidence", help=_FOLDER)] = None,
) -> None:
    """Print the page of tested pairs, docs/compatibility.md, as Markdown."""
    sys.stdout.write(page(read_all(folder), [recorded(one) for one in releases()]))
