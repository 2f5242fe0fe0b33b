"""``harness plan``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from harness import models
from harness.cli._options import ENGINE_PANEL, Json
from harness.cli._outcome import command, print_json
from harness.cli._plan_tables import show
from harness.dataset.prompts import PromptLimits, read_prompts
from harness.dataset.space import estimate_bytes
from harness.errors import ExitCode, UsageError
from harness.estimate import (
    CARDS,
    EngineSize,
    Estimate,
    Model,
    Verdict,
    card,
    estimate,
    folder_model,
    measure_read,
    most_layers,
    parse_size,
    profile_model,
    run_dtype,
)
from harness.extraction.plan import forbidden_ids
from harness.layers import resolve

_DEFAULT_LENGTH = 8192
_USUAL_DEPTHS = 4
_WIDTH = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class _Work:
    """What will be extracted: prompts (0 where only tokens are known), tokens, the longest."""

    samples: int
    tokens: int
    longest: int


@command
def plan(
    profile: Annotated[
        str | None, typer.Option(help="kimi-k2.5, kimi-k2.5-slice or kimi-k2.5-tiny.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Checkpoint folder; only config.json and sizes are read.")
    ] = None,
    num_layers: Annotated[
        int | None, typer.Option(help="Cut the model to so many decoder layers.")
    ] = None,
    gpu_memory: Annotated[
        list[str] | None,
        typer.Option(
            help="A card, may be given again: h100, rtx-pro-6000, h200, b200, the size it is sold "
            "by (96GB), or exact memory (94.5GiB). By default every known card is judged."
        ),
    ] = None,
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", min=1, rich_help_panel=ENGINE_PANEL)
    ] = 1,
    gpu_memory_utilization: Annotated[
        float, typer.Option(min=0.01, max=1.0, rich_help_panel=ENGINE_PANEL)
    ] = 0.85,
    layers: Annotated[
        str | None, typer.Option(help="Layer ids or a preset; by default four depths, L included.")
    ] = None,
    dialect: Annotated[str, typer.Option(help="How --layers counts.")] = "vllm",
    layout: Annotated[
        str, typer.Option(help="training: depth L is the last column; raw: exactly as asked.")
    ] = "training",
    capture: Annotated[str, typer.Option(help="native or patched.")] = "native",
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Longest request with its one output token; by default the longest prompt's, "
            "else 8192.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, rich_help_panel=ENGINE_PANEL)
    ] = 8192,
    max_num_seqs: Annotated[int, typer.Option(min=1, rich_help_panel=ENGINE_PANEL)] = 256,
    vision: Annotated[
        bool,
        typer.Option(
            "--vision",
            help="Count the vision tower, which an engine for text only leaves out.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = False,
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens to extract.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts to extract: JSONL with input_ids, or a dataset.")
    ] = None,
    read_rate: Annotated[
        str | None, typer.Option(help="What the disk gives in a second, such as 2GB.")
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option(
            "--measure-read",
            help="Read 256 MiB of a folder's files to find the rate; 16 MiB or more.",
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Say what a model needs on each GPU, the host and the disk, and whether it fits.

    Arithmetic only: no engine, no GPU and no weights are touched. The settings of an engine with
    their reasons are another thing: harness extract --dry-run. Exit code 0: it fits all cards
    named (or, where none is named, at least one that is known); 3: it does not.
    """
    subject = _subject(profile, model)
    if num_layers is not None:
        subject = subject.with_layers(num_layers)
    columns, written = _columns(layers, dialect, layout, subject.shape.num_hidden_layers)
    size = EngineSize(
        tensor_parallel_size=tensor_parallel_size,
        capture=_capture(capture),
        columns=columns,
        written=written,
        dtype=dtype,
        gpu_memory_utilization=gpu_memory_utilization,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        vision=vision,
    )
    width = _WIDTH[run_dtype(subject, size)]
    work = _work(subject, model, prompts, tokens)
    size = replace(size, max_model_len=max_model_len or work.longest + 1)
    rate, source = _rate(read_rate, measure)
    made = estimate(
        subject,
        size,
        output=estimate_bytes(
            work.tokens, written, subject.shape.hidden_size, width, samples=work.samples
        ),
        read_rate=rate,
        rate_source=source,
    )
    cards = [card(text) for text in gpu_memory or CARDS]
    verdicts = [made.on(each) for each in cards]
    shallower = [_shallower(made, each) for each in verdicts]
    fits = any(v.fits for v in verdicts) if not gpu_memory else all(v.fits for v in verdicts)
    if json_output:
        print_json(_json(made, verdicts, shallower, work, fits))
    else:
        show(made, verdicts, shallower, work.tokens)
    if not fits:
        raise typer.Exit(int(ExitCode.REFUSED))


def _subject(profile: str | None, folder: Path | None) -> Model:
    if profile is not None and folder is None:
        return profile_model(profile)
    if folder is not None and profile is None:
        return folder_model(folder)
    raise UsageError(
        "plan.which-model",
        expected="one of --profile and --model",
        found="neither" if profile is None else "both",
        where="harness plan",
        next="harness plan --profile kimi-k2.5 --tensor-parallel-size 8",
    )


def _columns(layers: str | None, dialect: str, layout: str, depth: int) -> tuple[int, int]:
    """Return how many depths the engine captures and how many a sample has."""
    if layers is None:
        return _USUAL_DEPTHS, _USUAL_DEPTHS
    resolved = resolve(layers, dialect, depth, layout=layout)
    return len(resolved.engine_depths), len(resolved.depths)


def _capture(name: str) -> str:
    if name in ("native", "patched"):
        return name
    raise UsageError(
        "plan.unknown-capture",
        expected="native or patched",
        found=name,
        where="--capture",
        next="leave it out: native needs more device memory",
    )


def _work(subject: Model, folder: Path | None, prompts: Path | None, tokens: int | None) -> _Work:
    longest = min(_DEFAULT_LENGTH, subject.shape.max_position_embeddings) - 1
    if prompts is None:
        return _Work(0, tokens or 0, longest)
    if tokens is not None:
        raise UsageError(
            "plan.tokens-twice",
            expected="one of --tokens and --prompts",
            found="both",
            where="harness plan",
            next="leave --tokens out: the prompts are counted",
        )
    placeholder = frozenset({subject.shape.media_placeholder_id} if subject.wrapper else ())
    limits = PromptLimits(
        vocab_size=subject.shape.vocab_size,
        max_tokens=subject.shape.max_position_embeddings - 1,
        forbidden_ids=forbidden_ids(models.read(folder)) if folder else placeholder,
    )
    found = read_prompts(prompts, limits=limits)
    return _Work(len(found), found.tokens, int(found.lengths.max()))


def _rate(given: str | None, folder: Path | None) -> tuple[float | None, str]:
    if given is not None:
        return float(parse_size(given.removesuffix("/s"), "--read-rate")), "as given"
    if folder is None:
        return None, ""
    seen = measure_read(folder)
    source = f"{seen.bytes / 1e6:.0f} MB of {folder.name} read in {seen.seconds:.2f} s"
    return seen.rate, f"{source}; what was read lately comes from memory"


def _shallower(made: Estimate, verdict: Verdict) -> int | None:
    """Return the most layers that would fit where the whole model does not."""
    return None if verdict.fits else most_layers(made.model, made.engine, verdict.card)


def _json(
    made: Estimate, verdicts: list[Verdict], shallower: list[int | None], work: _Work, fits: bool
) -> dict[str, Any]:
    cards = [
        verdict.to_json() | ({} if layers is None else {"most_layers": layers})
        for verdict, layers in zip(verdicts, shallower, strict=True)
    ]
    counted = {"samples": work.samples, "tokens": work.tokens}
    return {"fits": fits, **made.to_json(), **counted, "cards": cards}
