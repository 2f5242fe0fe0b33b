"""The root command: version, help, exit codes."""

from __future__ import annotations

from typing import Annotated

import typer

from harness import __version__

_HELP = """Proved hidden states from vLLM, for training EAGLE-3 draft heads.

What can be known before the load is known before the load, and nothing is written
that is not proved to belong to its token, its layer and its model.
"""

_EPILOG = """Exit codes: 0 ok; 1 a check failed; 2 usage; 3 refused before start;
4 unknown or not comparable; 5 the engine failed; 130 interrupted.
Results go to stdout (one JSON object with --json); progress and errors to stderr."""

app = typer.Typer(
    name="harness",
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"hidden-state-harness {__version__}")
        raise typer.Exit


@app.callback(help=_HELP, epilog=_EPILOG)
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Hold the options of the root command."""
