"""``harness extract``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from harness.capture.session import Deadlines
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
from harness.cli._rehearse import rehearse_first
from harness.dataset import conversations
from harness.errors import Refused
from harness.extraction import (
    EngineOptions,
    ExtractOptions,
    ExtractPlan,
    ExtractResult,
    make_plan,
)
from harness.extraction import extract as run_extract
from harness.extraction.needs import memory_line
from harness.extraction.options import capture_choice
from harness.extraction.plan import check_out
from harness.host.supervision.policy import STALL_S, Supervision, read_actions
from harness.preflight.check import ALL, skipped
from harness.settings import Settings

_LIMITS = "Limits"
_DEADLINES = Deadlines()


@command
def extract(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")],
    prompts: Annotated[
        Path,
        typer.Option(
            help="JSONL (id, input_ids, loss_mask), a Hugging Face dataset folder, or "
            "conversations as JSONL."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output folder; a run into its own folder resumes.")],
    layers: Layers = "speculators-0.9",
    dialect: Dialect = "vllm",
    layout: Layout = "training",
    capture: Capture = "auto",
    truncate: Annotated[bool, typer.Option(help="Cut prompts that are too long.")] = False,
    dtype: Dtype = "auto",
    tensor_parallel_size: TensorParallel = 1,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Longest request with its one output token; by default what the prompts need.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None,
    max_num_batched_tokens: BatchedTokens = None,
    gpu_memory_utilization: GpuMemory = 0.85,
    python: Python = None,
    spot_check_every: Annotated[
        int,
        typer.Option(
            min=0, help="Rebuild the log-probabilities of 1 sample in so many; 0: only the canary."
        ),
    ] = 64,
    batch_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens handed over at once; 0: chosen by the harness.")
    ] = 0,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            help="Let code that lies in the checkpoint run: a tokenizer's (conversations), and "
            "before vLLM 0.21 a wrapper's image processor."
        ),
    ] = False,
    skip_check: SkipCheck = None,
    skip_preflight: SkipPreflight = False,
    skip_gate: SkipGate = False,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Before the load, do the job once with the model's first layers at full width.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check and explain every setting; start no engine. harness plan is about memory.",
        ),
    ] = False,
    load_deadline: Annotated[
        float, typer.Option(min=1, help="Seconds for the load.", rich_help_panel=_LIMITS)
    ] = _DEADLINES.load,
    first_batch_deadline: Annotated[
        float,
        typer.Option(
            min=1, help="Seconds for the canary, and for the first batch.", rich_help_panel=_LIMITS
        ),
    ] = _DEADLINES.first_batch,
    batch_deadline: Annotated[
        float, typer.Option(min=1, help="Seconds for a batch.", rich_help_panel=_LIMITS)
    ] = _DEADLINES.batch,
    shutdown_deadline: Annotated[
        float,
        typer.Option(min=1, help="Seconds for the engine's orderly end.", rich_help_panel=_LIMITS),
    ] = _DEADLINES.shutdown,
    stall_deadline: Annotated[
        float,
        typer.Option(
            min=1,
            help="Seconds without a log line, CPU, storage or GPU use.",
            rich_help_panel=_LIMITS,
        ),
    ] = STALL_S,
    supervise: Annotated[
        str,
        typer.Option(
            help="What to do about an engine that cannot succeed: DANGER=ACTION,... with the "
            "dangers line, stall, memory, shm and code, and the actions kill, warn and off.",
            rich_help_panel=_LIMITS,
        ),
    ] = Settings.supervise,
    json_output: Json = False,
) -> None:
    """Extract hidden states of prompts into a dataset that a trainer reads."""
    checks = (ALL,) if skip_preflight else tuple(skip_check or ())
    skipped(checks)
    interpreter = python or Path(sys.executable)
    supervision = Supervision(actions=read_actions(supervise), stall_s=stall_deadline)
    options = ExtractOptions(
        engine=EngineOptions(
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
            deadlines=replace(
                _DEADLINES,
                load=load_deadline,
                first_batch=first_batch_deadline,
                batch=batch_deadline,
                shutdown=shutdown_deadline,
            ),
        ),
        prompts=prompts,
        out=out,
        truncate=truncate,
        spot_check_every=spot_check_every,
        trust_remote_code=trust_remote_code,
        batch_tokens=batch_tokens,
    )
    with tempfile.TemporaryDirectory(prefix="harness-prompts-") as scratch:
        plan = make_plan(options, tokenise=_tokeniser(options, Path(scratch)))
    for note in plan.prompts.notes:
        say(f"note: {note.message} ({note.count}: {', '.join(note.examples)})")
    _require_trust(plan, trust_remote_code)
    check_out(plan)
    if dry_run:
        _explain(plan, json_output)
        return
    observer = ConsoleObserver(len(plan.prompts), plan.prompts.tokens)
    try:
        result = run_extract(
            plan,
            observer,
            supervision=supervision,
            skip_checks=checks,
            before_load=partial(
                rehearse_first,
                options.engine,
                out,
                longest_prompt=int(plan.prompts.lengths.max()),
                checks=checks,
                supervision=supervision,
            )
            if rehearse
            else None,
        )
    finally:
        observer.close()
    if json_output:
        print_json(result.to_json())
    else:
        _show(result)


def _require_trust(plan: ExtractPlan, trusted: bool) -> None:
    """Refuse an engine that runs code of the checkpoint where the user has not allowed it."""
    if plan.engine.recipe.engine_args.get("trust_remote_code") and not trusted:
        vllm = plan.engine.seen.engine.vllm
        raise Refused(
            "extract.remote-code",
            expected="leave to run code that lies in the checkpoint: vLLM "
            f"{vllm} asks a wrapper's image processor for its sizes, even for text",
            found="no --trust-remote-code",
            where=str(plan.engine.model.path),
            next="read the checkpoint's *.py files, then add --trust-remote-code; or use a newer "
            "vLLM",
        )


def _tokeniser(options: ExtractOptions, scratch: Path) -> Callable[[Path], Path]:
    engine = options.engine
    room = engine.max_model_len - 1 if engine.max_model_len and options.truncate else None

    def tokenise(path: Path) -> Path:
        return conversations.tokenise(
            path,
            engine.model,
            engine.python,
            scratch / "prompts.jsonl",
            options=conversations.TokeniseOptions(
                max_length=room, trust_remote_code=options.trust_remote_code
            ),
            on_report=lambda report: say(report.explain()),
        )

    return tokenise


def _explain(plan: ExtractPlan, json_output: bool) -> None:
    layers = plan.engine.layers
    assert layers is not None
    if json_output:
        print_json(
            {
                "samples": len(plan.prompts),
                "tokens": plan.prompts.tokens,
                "bytes": plan.bytes,
                "layers": layers.to_json(),
                "capture": {"name": plan.engine.session.name, "why": plan.engine.why},
                "recipe": plan.engine.recipe.to_json(),
                "identity": plan.info.identity.to_json(),
                "notes": [
                    {"message": one.message, "count": one.count, "examples": list(one.examples)}
                    for one in plan.prompts.notes
                ],
            }
        )
        return
    console = Console()
    console.print(layers.explain(), markup=False, soft_wrap=True)
    console.print(
        f"\ncapture {plan.engine.session.name}: {plan.engine.why}", markup=False, soft_wrap=True
    )
    console.print("\n" + plan.engine.recipe.explain(), markup=False, soft_wrap=True)
    console.print(
        f"\n{len(plan.prompts)} prompts, {plan.prompts.tokens} tokens, {plan.bytes / 1e9:.3f} GB"
    )
    if plan.engine.seen.platform.device == "cuda":
        console.print(memory_line(plan.engine), markup=False, soft_wrap=True)


def _show(result: ExtractResult) -> None:
    table = Table(title="extraction", show_header=False)
    for name, value in result.to_json().items():
        table.add_row(
            name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)
        )
    Console().print(table)
