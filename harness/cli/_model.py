"""``harness model``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness import models
from harness.cli._options import Json
from harness.cli._outcome import command, print_json

app = typer.Typer(
    help="Model profiles: small checkpoints of Kimi-K2.5's shape.", no_args_is_help=True
)


@app.callback()
def model() -> None:
    """Group the model commands."""


@app.command("make")
@command
def make(
    profile: Annotated[str, typer.Argument(help="kimi-k2.5-tiny or kimi-k2.5-slice.")],
    directory: Annotated[
        Path, typer.Argument(help="Folder to write: new, empty, or the same checkpoint.")
    ],
    seed: Annotated[int, typer.Option(min=0)] = 0,
    architecture: Annotated[
        str, typer.Option(help="wrapper (KimiK25ForConditionalGeneration) or plain (DeepseekV3).")
    ] = "wrapper",
    experts: Annotated[
        str | None,
        typer.Option(
            help="dense, int4, or int4-twin (dense, with int4's dequantised weights); "
            "by default the profile's own."
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; by default the profile's own.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Number of layers; by default the profile's own.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="files, or load: a plan from which each engine makes the same weights; by "
            "default the profile's own way."
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Write a complete checkpoint folder, the same bytes on every machine for one seed."""
    models.make(
        profile,
        directory,
        seed=seed,
        architecture=architecture,
        experts=experts,
        dtype=dtype,
        layers=layers,
        weights=weights,
    )
    fingerprint = models.fingerprint(directory)
    if json_output:
        print_json({"model": str(directory), "profile": profile, "fingerprint": fingerprint})
    else:
        typer.echo(f"{directory}  {fingerprint}")
