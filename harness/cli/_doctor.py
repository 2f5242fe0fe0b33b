"""``harness doctor``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._options import (
    BatchedTokens,
    Capture,
    Dialect,
    Dtype,
    GpuMemory,
    Json,
    Layers,
    Layout,
    Python,
    TensorParallel,
)
from harness.cli._outcome import command, print_json, say
from harness.cli._widths import print_command, print_whole
from harness.doctor import Check, examine
from harness.errors import ExitCode
from harness.extraction import EngineOptions
from harness.extraction.options import capture_choice

_STYLE = {"ok": "green", "note": "yellow", "fail": "bold red"}


@command
def doctor(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder to look at.")] = None,
    layers: Layers = "speculators-0.9",
    dialect: Dialect = "vllm",
    tensor_parallel_size: TensorParallel = 1,
    layout: Layout = "training",
    capture: Capture = "auto",
    dtype: Dtype = "auto",
    max_model_len: Annotated[int | None, typer.Option(min=3, help="Longest request.")] = None,
    max_num_batched_tokens: BatchedTokens = None,
    gpu_memory_utilization: GpuMemory = 0.85,
    python: Python = None,
    trust_remote_code: Annotated[
        bool, typer.Option(help="Let code that lies in the checkpoint run, where it would.")
    ] = False,
    skip_gate: Annotated[
        bool,
        typer.Option(
            "--skip-gate", help="Go on also where the files of this vLLM show that it cannot work."
        ),
    ] = False,
    json_output: Json = False,
) -> None:
    """Say what can run here, and why not; nothing is loaded."""
    interpreter = python or Path(sys.executable)
    options = None
    if model is not None:
        options = EngineOptions(
            model=model,
            layers=layers,
            dialect=dialect,
            layout=layout,
            capture=capture_choice(capture, "--capture"),
            dtype=dtype,
            tensor_parallel_size=tensor_parallel_size,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            gpu_memory_utilization=gpu_memory_utilization,
            python=interpreter,
            skip_gate=skip_gate,
        )
    checks: list[Check] = []
    with tempfile.TemporaryDirectory(prefix="harness-doctor-") as scratch:
        for check in examine(
            options,
            python=interpreter,
            scratch=Path(scratch),
            trust_remote_code=trust_remote_code,
        ):
            checks.append(check)
            if not json_output:
                say(f"looked at {check.name}", style="dim")
    ok = all(check.state != "fail" for check in checks)
    if json_output:
        print_json({"ok": ok, "checks": [check.to_json() for check in checks]})
    else:
        _show(checks)
    if not ok:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


def _show(checks: list[Check]) -> None:
    console = Console()
    if not print_whole(console, lambda nexts: _table(checks, nexts)):
        for check in checks:
            if check.next:
                console.print(f"{check.name}:", markup=False, highlight=False)
                print_command(console, "next: ", check.next)


def _table(checks: list[Check], nexts: bool) -> Table:
    table = Table(title="harness doctor")
    columns = ("check", "state", "found")
    for name in (*columns, "next") if nexts else columns:
        table.add_column(name, overflow="fold")
    for check in checks:
        state = f"[{_STYLE[check.state]}]{check.state}[/]"
        more = [escape(check.next)] if nexts else []
        table.add_row(check.name, state, escape(check.found), *more)
    return table
