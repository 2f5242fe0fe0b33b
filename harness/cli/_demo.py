"""``harness demo``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._options import Json
from harness.cli._outcome import command, print_json, say
from harness.cli._progress import ConsoleObserver
from harness.demo import DemoResult
from harness.demo import demo as run_demo
from harness.errors import ExitCode


@command
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for model and dataset; an earlier demo is replaced.")
    ] = Path("out/demo"),
    python: Annotated[
        Path | None,
        typer.Option(help="Interpreter that has vLLM; by default the one that runs this command."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Run the main job on a tiny Kimi-K2.5: real engine, proved rows, a table at the end."""
    observer = ConsoleObserver(0, 0)
    try:
        result = run_demo(out, python=python or Path(sys.executable), observer=observer)
    finally:
        observer.close()
    if json_output:
        print_json(result.to_json())
    else:
        _show(result)
    for fault in result.faults:
        say(f"fault: {fault}")
    if not result.verified:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


def _show(result: DemoResult) -> None:
    table = Table(title="hidden states of a tiny Kimi-K2.5, vLLM beside Hugging Face transformers")
    for name in ("id", "tokens", "depths", "hidden", "dtype", "max rel. error", "status"):
        table.add_column(name, justify="left" if name in ("id", "status") else "right")
    for row in result.rows:
        table.add_row(
            escape(row.id),
            str(row.tokens),
            ",".join(map(str, row.layers)),
            str(row.hidden),
            row.dtype,
            f"{row.max_rel_err:.1e}",
            row.status,
        )
    console = Console()
    console.print(table)
    run = result.extraction
    word = "[bold green]verified[/]" if result.verified else "[bold red]NOT verified[/]"
    console.print(
        f"{word}: {len(result.rows)} samples, {run.tokens} tokens, "
        f"max relative error {result.max_rel_err:.1e}, "
        f"{run.checked} spot checks; dataset in {run.out}"
    )
