"""How a command ends: one JSON object or a table on stdout, an exit code by kind."""

from __future__ import annotations

import functools
import json
import math
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console

from harness.errors import ExitCode, Failure, HarnessError

P = ParamSpec("P")
R = TypeVar("R")

log = Console(stderr=True, highlight=False)
"""For progress, notes and errors; stdout stays free for results."""


_INTERRUPTED = Failure(
    id="interrupted",
    expected="time to end",
    found="nothing is left running, whole samples are kept",
    where="this command",
    next="run it again; an extraction goes on where it stopped",
)


def say(text: str, *, style: str = "", markup: bool = False) -> None:
    """Print a line on stderr, whole: a command that is wrapped or cut cannot be copied."""
    log.print(text, style=style or None, markup=markup, soft_wrap=True)


def tell(failure: Failure) -> None:
    """Print a failure on stderr."""
    say(f"[bold red]error[/] {failure.id}", markup=True)
    say(str(failure).split("\n", 1)[1])


def print_json(body: Any) -> None:
    """Print one JSON object on one line of stdout."""
    sys.stdout.write(json.dumps(_finite(body), default=str, allow_nan=False) + "\n")
    sys.stdout.flush()


def _finite(body: Any) -> Any:
    """Replace what JSON has no word for; a reader must not choke on Infinity or NaN."""
    if isinstance(body, float) and not math.isfinite(body):
        return str(body)
    if isinstance(body, dict):
        return {key: _finite(value) for key, value in body.items()}
    return [_finite(value) for value in body] if isinstance(body, list | tuple) else body


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Turn failures of a command into its message and exit code."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # A batch system ends jobs with SIGTERM: unwind as for Ctrl-C, engine included.
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            return function(*args, **kwargs)
        except HarnessError as error:
            if kwargs.get("json_output"):
                print_json({"error": error.failure.to_json()})
            tell(error.failure)
            raise typer.Exit(int(error.exit_code)) from None
        except KeyboardInterrupt:
            if kwargs.get("json_output"):
                print_json({"error": _INTERRUPTED.to_json()})
            say(f"[yellow]interrupted[/]; {_INTERRUPTED.found}", markup=True)
            raise typer.Exit(int(ExitCode.INTERRUPTED)) from None

    return run


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
