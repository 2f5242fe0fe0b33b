"""``harness rehearse``, and the rehearsal of ``harness extract``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from harness.cli._options import (
    BatchedTokens,
    Capture,
    Dialect,
    Dtype,
    GpuMemory,
    Json,
    Layout,
    Python,
    SkipCheck,
    SkipGate,
    SkipPreflight,
    TensorParallel,
)
from harness.cli._outcome import command, print_json, say
from harness.cli._progress import ConsoleObserver
from harness.extraction import EngineOptions
from harness.extraction.options import capture_choice
from harness.host.supervision.policy import Supervision
from harness.preflight.check import ALL, skipped
from harness.rehearsal import LAYERS, Rehearsal
from harness.rehearsal import rehearse as run_rehearsal


@command
def rehearse(
    model: Annotated[Path, typer.Option(help="Checkpoint folder of Kimi-K2.5's family.")],
    layers: Annotated[
        str, typer.Option(help="Layer ids, as for extract: as many are captured, in their order.")
    ] = "speculators-0.9",
    dialect: Dialect = "vllm",
    layout: Layout = "training",
    capture: Capture = "auto",
    keep: Annotated[
        int, typer.Option(min=2, help="Layers to keep; more where more are captured.")
    ] = LAYERS,
    disk: Annotated[
        Path | None,
        typer.Option(help="Folder on the disk of the output; by default the temporary folder."),
    ] = None,
    dtype: Dtype = "auto",
    tensor_parallel_size: TensorParallel = 1,
    max_model_len: Annotated[int, typer.Option(min=3, help="Longest request.")] = 1024,
    max_num_batched_tokens: BatchedTokens = None,
    gpu_memory_utilization: GpuMemory = 0.85,
    python: Python = None,
    skip_check: SkipCheck = None,
    skip_preflight: SkipPreflight = False,
    skip_gate: SkipGate = False,
    json_output: Json = False,
) -> None:
    """Do the whole job with a model's first layers at full width: two minutes before twenty.

    Workers and their communication, kernels, cache pages, canary, capture and disk are as the
    whole load will have them; weights are made from a seed. Nothing of it is left.
    """
    checks = (ALL,) if skip_preflight else tuple(skip_check or ())
    skipped(checks)
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
    )
    place = disk or Path(tempfile.gettempdir())
    found = rehearsed(
        options,
        place,
        place / "harness-rehearsal.log",
        max_model_len - 1,
        checks,
        Supervision(),
        keep,
    )
    if json_output:
        print_json(found.to_json())
    else:
        Console().print(found.explain(), markup=False, soft_wrap=True)


def rehearsed(
    options: EngineOptions,
    disk: Path,
    engine_log: Path,
    longest_prompt: int,
    checks: Collection[str],
    supervision: Supervision,
    keep: int = LAYERS,
) -> Rehearsal:
    """Rehearse with progress on stderr.

    Raises:
        HarnessError: As :func:`harness.rehearsal.rehearse`.
    """
    observer = ConsoleObserver(0, 0)
    try:
        return run_rehearsal(
            options,
            disk=disk,
            log=engine_log,
            layers=keep,
            longest_prompt=longest_prompt,
            observer=observer,
            supervision=supervision,
            skip_checks=checks,
        )
    finally:
        observer.close()


def rehearse_first(
    options: EngineOptions,
    out: Path,
    *,
    longest_prompt: int,
    checks: Collection[str],
    supervision: Supervision,
) -> None:
    """Rehearse an extraction on the disk of its output folder, and say what it showed.

    Raises:
        HarnessError: As :func:`harness.rehearsal.rehearse`.
    """
    place = out.absolute().parent
    while not place.exists() and place != place.parent:
        place = place.parent
    engine_log = place / f"{out.name}.rehearsal.log"
    found = rehearsed(options, place, engine_log, longest_prompt, checks, supervision)
    say(found.summary())
