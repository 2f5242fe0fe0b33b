"""``harness engine``: start, list and stop engines that outlive a test run."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness import models
from harness.cli._options import (
    ENGINE_PANEL,
    BatchedTokens,
    Capture,
    Dialect,
    Dtype,
    GpuMemory,
    Json,
    Layers,
    Layout,
    Python,
    SkipCheck,
    SkipGate,
    SkipPreflight,
    TensorParallel,
)
from harness.cli._outcome import command, print_json, say
from harness.cli._progress import ConsoleObserver
from harness.host.supervision.policy import LoadProgress
from harness.lease import duration
from harness.lease.condition import Judged, judge
from harness.lease.record import DEFAULT_NAME, Book, check_name
from harness.lease.refusals import require_free
from harness.preflight.check import ALL, skipped

app = typer.Typer(
    help="Engines that outlive a test run: load once, then pytest --hs-attach as often as needed.",
    no_args_is_help=True,
)


@app.callback()
def engine() -> None:
    """Group the engine commands."""


@app.command("start")
@command
def start(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")],
    name: Annotated[str, typer.Option(help="Name of the lease.")] = DEFAULT_NAME,
    span: Annotated[
        str, typer.Option("--for", help="How long it may live: 4h, 90m, 1h30m; 30d at most.")
    ] = "4h",
    layers: Layers = "speculators-0.9",
    dialect: Dialect = "vllm",
    layout: Layout = "training",
    capture: Capture = "auto",
    dtype: Dtype = "auto",
    tensor_parallel_size: TensorParallel = 1,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Longest request with its one output token; by default 1024, or the model's "
            "own limit where that is less.",
            min=3,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None,
    max_num_batched_tokens: BatchedTokens = None,
    gpu_memory_utilization: GpuMemory = 0.85,
    python: Python = None,
    spool: Annotated[
        Path | None,
        typer.Option(help="Folder on a disk with room for a batch of samples on their way."),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option(help="Let code that lies in the checkpoint run, where vLLM would.")
    ] = False,
    skip_check: SkipCheck = None,
    skip_preflight: SkipPreflight = False,
    skip_gate: SkipGate = False,
    load_deadline: Annotated[float, typer.Option(min=1, help="Seconds for the load.")] = 2400.0,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return at once; harness engine status tells.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Load an engine, prove it, and keep it until its time is over or it is stopped.

    Ctrl-C while it loads ends it. Afterwards it needs no terminal.
    """
    from harness.capture.session import Deadlines
    from harness.extraction import EngineOptions
    from harness.extraction.options import capture_choice
    from harness.lease.start import start as start_lease

    # What can be refused at once is refused before anything is said of a load.
    check_name(name)
    seconds = duration.parse(span)
    checks = (ALL,) if skip_preflight else tuple(skip_check or ())
    skipped(checks)
    require_free(name, Book())
    models.read(model)
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
        python=python or Path(sys.executable),
        skip_gate=skip_gate,
        deadlines=Deadlines(load=load_deadline),
    )
    observer = ConsoleObserver(0, 0)
    try:
        lease = start_lease(
            options,
            name=name,
            seconds=seconds,
            spool=spool,
            wait=not no_wait,
            skip_checks=checks,
            trust_remote_code=trust_remote_code,
            observer=_Starting(observer, str(model)),
        )
    finally:
        observer.close()
    if json_output:
        print_json(_row(judge(lease)))
        return
    _show([judge(lease)])
    say(f"next: pytest --hs-attach={name}; harness engine stop {name}")


@app.command("status")
@command
def status(
    json_output: Json = False,
) -> None:
    """List the leases: loading, ready, busy, dead (and why), expired; and broken records."""
    book = Book()
    found = [judge(lease) for lease in book.all()]
    broken = book.unreadable()
    if json_output:
        rows = {"leases": [_row(one) for one in found]}
        others = [one.to_json() for one in broken]
        print_json({"folder": str(book.folder), **rows, "unreadable": others})
        return
    if found:
        _show(found)
    for one in broken:
        console = Console()
        console.print(f"{one.name}: unreadable: {one.why}", markup=False, soft_wrap=True)
        console.print(f"    next: {one.next}", markup=False, soft_wrap=True)
    if not found and not broken:
        say("no leases; next: harness engine start --model DIR")


@app.command("stop")
@command
def stop(
    name: Annotated[str, typer.Argument(help="The lease.")] = DEFAULT_NAME,
    force: Annotated[bool, typer.Option("--force", help="Also where a session uses it.")] = False,
    json_output: Json = False,
) -> None:
    """End a lease, verify that nothing of it is left, and forget it."""
    from harness.lease.stop import stop as stop_lease

    done = stop_lease(name, force=force)
    if json_output:
        row = {"name": name, "was": str(done.was), "ended_processes": done.ended}
        print_json({**row, "seconds": round(done.seconds, 2)})
    else:
        processes = "1 process" if done.ended == 1 else f"{done.ended} processes"
        Console().print(
            f"{name} was {done.was}; {processes} ended in {done.seconds:.1f} s, nothing is left",
            markup=False,
            soft_wrap=True,
        )


class _Starting:
    """Says that an engine is loading once it is: what is refused before then never was."""

    def __init__(self, shown: ConsoleObserver, model: str) -> None:
        self._shown, self._model = shown, model
        self._begun = False

    def loading(self, progress: LoadProgress) -> None:
        """Show how far the load is."""
        if not self._begun:
            self._begun = True
            self._shown.stage("load", self._model)
        self._shown.loading(progress)

    def warning(self, text: str) -> None:
        """Show a warning of the load."""
        self._shown.warning(text)


def _row(one: Judged) -> dict[str, Any]:
    lease, now = one.lease, time.time()
    return {
        "name": lease.name,
        "state": str(one.condition),
        "why": one.why,
        "model": lease.options.get("model"),
        "capture": lease.capture,
        "depths": list(lease.depths),
        "owner": lease.owner,
        "age_s": round(now - lease.started, 1),
        "left_s": round(max(0.0, lease.expires - now), 1) if one.condition.live else 0.0,
        "loaded_s": None if lease.loaded is None else round(now - lease.loaded, 1),
        "loads": lease.loads,
        "sessions": lease.sessions,
        "pid": lease.keeper.pid,
        "engine_pid": lease.engine.pid if lease.engine else None,
        "devices": lease.devices,
        "log": str(lease.log),
        "spool": str(lease.spool),
    }


def _show(found: list[Judged]) -> None:
    table = Table(title="leased engines")
    for name in ("name", "state", "model", "capture", "age", "left", "sessions", "pid", "devices"):
        table.add_column(name, overflow="fold")
    for one in found:
        row = _row(one)
        table.add_row(
            escape(row["name"]),
            escape(str(one)),
            escape(str(row["model"])),
            f"{row['capture']} {','.join(map(str, row['depths']))}".strip(),
            duration.show(row["age_s"]),
            duration.show(row["left_s"]) if one.condition.live else "-",
            str(row["sessions"]),
            str(row["pid"]),
            escape(row["devices"]),
        )
    Console().print(table)
