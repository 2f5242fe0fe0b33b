"""``harness preflight``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._options import Json
from harness.cli._outcome import command, print_json
from harness.cli._widths import print_command, print_whole
from harness.errors import ExitCode
from harness.estimate import EngineSize
from harness.preflight import Probe, Report, Row, Verdict
from harness.preflight._page import page
from harness.preflight.run import Asked, look, need_of

_STYLE = {Verdict.CLEAN: "green", Verdict.UNKNOWN: "yellow", Verdict.DIRTY: "bold red"}
EPILOG = """Exit codes: 0 CLEAN; 3 DIRTY or UNKNOWN, also where there is no GPU: nothing that needs
one can be started. docs/preflight.md lists the checks. Nothing is ever ended."""


@command
def preflight(
    profile: Annotated[
        str | None,
        typer.Option(help="A known model: kimi-k2.5, kimi-k2.5-slice or kimi-k2.5-tiny."),
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder.")] = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel-size",
            "-tp",
            min=1,
            help="GPUs that the engine will use, the first of those visible; by default 1 for a "
            "model, and all without one.",
        ),
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of each GPU's memory.")
    ] = 0.85,
    out: Annotated[Path | None, typer.Option(help="Output folder, for its disk.")] = None,
    python: Annotated[
        Path | None,
        typer.Option(help="Interpreter that has vLLM; by default the one that runs this command."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK", help="Leave out a check, or a family of them; repeatable."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0.0, max=86400.0, help="Seconds to wait for memory to be given back."),
    ] = 0.0,
    deadline: Annotated[
        float,
        typer.Option(
            min=0.5, max=600.0, help="Seconds after which a driver that hangs is UNKNOWN."
        ),
    ] = Probe().deadline,
    markdown: Annotated[bool, typer.Option(help="The page docs/preflight.md.")] = False,
    json_output: Json = False,
) -> None:
    """Say whether the GPUs are clean and the box is fit for a load: CLEAN, DIRTY or UNKNOWN."""
    if markdown:
        sys.stdout.write(page())
        return
    interpreter = python or Path(sys.executable)
    asked = Asked(
        profile=profile,
        model=model,
        devices=tensor_parallel_size,
        size=EngineSize(gpu_memory_utilization=gpu_memory_utilization),
        out=out,
        python=interpreter,
    )
    report = look(
        need_of(asked),
        probe=Probe(wait=wait, deadline=deadline),
        skip=skip or (),
        python=interpreter,
    )
    if json_output:
        print_json(report.to_json())
    else:
        show(report)
    if report.verdict is not Verdict.CLEAN:
        raise typer.Exit(int(ExitCode.REFUSED))


def show(report: Report) -> None:
    """Print a report."""
    console = Console()
    if report.rows:
        # What is next is said under each finding too.
        print_whole(console, lambda nexts: _table(report.rows, nexts))
    for finding in report.findings:
        style = "dim" if finding.verdict is Verdict.CLEAN else _STYLE[finding.verdict]
        word = "note" if finding.verdict is Verdict.CLEAN else finding.verdict
        where = "" if finding.device is None else f"GPU {finding.device}: "
        text = escape(f"{finding.check}: {where}{finding.found}")
        console.print(f"[{style}]{word}[/] {text}", soft_wrap=True)
        if finding.next:
            print_command(console, "next: ", finding.next)
    console.print(f"[{_STYLE[report.verdict]}]{report.verdict}[/] in {report.seconds:.1f} s")


def _table(rows: tuple[Row, ...], nexts: bool) -> Table:
    table = Table(title="GPUs", title_justify="left")
    columns = ("GPU", "used MiB", "owner", "user", "command", "age", "verdict")
    for column in (*columns, "next") if nexts else columns:
        table.add_column(
            column, overflow="fold", justify="right" if column == "used MiB" else "left"
        )
    for row in rows:
        style = _STYLE[row.verdict] if row.used_by_engine else "dim"
        used = "?" if row.used is None else f"{row.used / (1 << 20):,.0f}"
        table.add_row(
            f"{row.device} {escape(row.name.removeprefix('NVIDIA '))}",
            used,
            _owner(row),
            escape(row.user),
            escape(row.command),
            "" if row.age is None else _age(row.age),
            f"[{style}]{row.verdict if row.used_by_engine else 'not used'}[/]",
            *([escape(row.next)] if nexts else []),
        )
    return table


def _owner(row: Row) -> str:
    if row.pid is not None:
        return str(row.pid)
    return "none visible" if row.verdict is Verdict.DIRTY else ""


def _age(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
