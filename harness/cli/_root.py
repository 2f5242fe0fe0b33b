"""The root command: version, help, exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from harness import __version__
from harness.cli._outcome import print_json, tell
from harness.cli._streams import guarded
from harness.cli._usage import failure_of, refuse_empty, wants_json
from harness.errors import HarnessError

_HELP = """Proved hidden states from vLLM, for training EAGLE-3 draft heads.

What can be known before the load is known before the load, and nothing is written
that is not proved to belong to its token, its layer and its model.
"""

_EPILOG = """Exit codes: 0 ok; 1 a check failed; 2 usage; 3 refused before start;
4 unknown or not comparable, or stdout took not all of it; 5 the engine failed; 130 interrupted.
Results go to stdout (one JSON object with --json); progress and errors to stderr."""


_WORDS = "harness.words"


class _Root(TyperGroup):
    """The root of all commands: what holds for each of them, whatever it does."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **named: Any) -> Any:
        """Run a command line on guarded streams; a usage error is also told as JSON."""
        with guarded():
            try:
                try:
                    return super().main(args, *more, **named)
                finally:
                    # What is still in a buffer fails here, where it can be told.
                    sys.stdout.flush()
            except HarnessError as error:
                tell(error.failure)
                sys.exit(int(error.exit_code))

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **named: Any) -> Any:
        """Read the words of the root."""
        words = list(args)
        try:
            refuse_empty(words)
            context = super().make_context(info_name, args, *more, **named)
        except Exception as error:
            self._json(error, words)
            raise
        context.meta[_WORDS] = words
        return context

    def invoke(self, ctx: Any) -> Any:
        """Read the words of the commands below, and run."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            self._json(error, ctx.meta[_WORDS])
            raise

    def _json(self, error: Exception, words: Sequence[str]) -> None:
        failure = failure_of(error, self, words)
        if failure is not None and wants_json(words):
            print_json({"error": failure.to_json()})


app = typer.Typer(
    name="harness",
    cls=_Root,
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
