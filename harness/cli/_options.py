"""Options that several commands take, each said once. Defaults stand with the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ENGINE_PANEL = "Engine"

Layers = Annotated[
    str, typer.Option(help="Layer ids such as 1,3,6, or a preset: eagle3, speculators-0.3, -0.9.")
]
Dialect = Annotated[
    str, typer.Option(help="How --layers counts: vllm, speculators-gen1, hf, sglang, modelopt.")
]
Layout = Annotated[
    str, typer.Option(help="training: depth L is the last column; raw: exactly as asked.")
]
Capture = Annotated[
    str,
    typer.Option(
        help="native: vLLM's own extract_hidden_states; patched: hooks in the workers; "
        "auto: native where the release can do what is asked."
    ),
]
Dtype = Annotated[str, typer.Option(help="auto, float32 or bfloat16.")]
TensorParallel = Annotated[
    int,
    typer.Option(
        "--tensor-parallel-size",
        "-tp",
        min=1,
        help="GPUs that share the model.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
BatchedTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens of one scheduler step.", rich_help_panel=ENGINE_PANEL),
]
GpuMemory = Annotated[
    float,
    typer.Option(
        min=0.01, max=1.0, help="Share of each GPU's memory.", rich_help_panel=ENGINE_PANEL
    ),
]
Python = Annotated[
    Path | None,
    typer.Option(
        help="Interpreter that has vLLM; by default the one that runs this command.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
SkipCheck = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CHECK",
        help="Leave out a check of harness preflight, or a family of them; repeatable.",
    ),
]
SkipPreflight = Annotated[
    bool, typer.Option("--skip-preflight", help="Load onto GPUs without a look at them.")
]
SkipGate = Annotated[
    bool,
    typer.Option(
        "--skip-gate",
        help="Load a vLLM also where its files show that the capture cannot work with it "
        "(docs/gate.md).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
