"""``harness patches list``, ``check`` and ``run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._options import Json
from harness.cli._outcome import command, print_json, say
from harness.errors import ExitCode, UsageError
from harness.patches import (
    PATCHES,
    Patch,
    State,
    Status,
    interpreter_of,
    needed_in,
    of_python,
    of_release,
    page,
    run_patched,
)

app = typer.Typer(
    help="What makes speculators 0.3.0's in-process generator right on newer vLLM.",
    no_args_is_help=True,
)

_PYTHON = "The interpreter of an environment with vLLM and speculators 0.3."
_COLOURS = {Status.NEEDED: "yellow", Status.OBSOLETE: "dim", Status.BROKEN: "bold red"}


@app.command("list")
@command
def list_patches(
    markdown: Annotated[bool, typer.Option(help="The page docs/patches.md.")] = False,
    json_output: Json = False,
) -> None:
    """List the patches, in the order in which their faults are met."""
    if json_output:
        print_json({"patches": [_facts(patch) for patch in PATCHES]})
        return
    if markdown:
        sys.stdout.write(page())
        return
    table = Table(title="patches of speculators 0.3.0's generator")
    for column in ("patch", "in", "what it does"):
        table.add_column(column, overflow="fold")
    for patch in PATCHES:
        table.add_row(patch.id, patch.process, escape(patch.summary))
    Console().print(table)


@app.command("check")
@command
def check(
    python: Annotated[Path | None, typer.Option(help=_PYTHON)] = None,
    release: Annotated[
        str | None, typer.Option(help="A recorded vLLM release, such as 0.16.0.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Say what each patch is to an environment, and why; exit code 1 when one is broken."""
    if release is not None and python is not None:
        raise UsageError(
            "patches.two-environments",
            expected="--python or --release",
            found="both",
            where="the command line",
            next="leave one out: --python reads the environment, --release what was recorded",
        )
    environment = (
        of_release(release) if release is not None else of_python(python or Path(sys.executable))
    )
    states = {patch: environment.state(patch) for patch in PATCHES}
    head = {
        "vllm": environment.surface.release,
        "build": environment.surface.build,
        "speculators": environment.speculators,
    }
    if json_output:
        rows = {patch.id: {"state": s.status, "reason": s.reason} for patch, s in states.items()}
        print_json({**head, "patches": rows})
    else:
        Console().print(_states(f"patches on vLLM {head['vllm']} ({head['build']})", states))
    if any(state.status is Status.BROKEN for state in states.values()):
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


@app.command("run")
@command
def run(
    words: Annotated[list[str], typer.Argument(metavar="-- python SCRIPT ARGS")],
    python: Annotated[
        Path | None, typer.Option(help=f"{_PYTHON} By default, the command's first word.")
    ] = None,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Allow the code that comes with the model's tokenizer. 0.3.0 itself runs the "
            "code of the model's configuration without asking.",
        ),
    ] = False,
) -> None:
    """Run a script with the needed patches in force, in it and in every worker."""
    patches = needed_in(of_python(interpreter_of(words, python)))
    say(f"patches: {', '.join(patch.id for patch in patches)}")
    code = run_patched(words, patches, python=python, trust_remote_code=trust_remote_code)
    raise typer.Exit(code)


def _facts(patch: Patch) -> dict[str, Any]:
    return {
        "id": patch.id,
        "generation": patch.generation,
        "process": patch.process,
        "seam": patch.seam,
        "targets": list(patch.targets),
        "summary": patch.summary,
        "fault": patch.fault,
        "silent": patch.silent,
        "releases": patch.releases,
        "retire_when": patch.retire_when,
        "upstream": patch.upstream,
        "environment": dict(patch.environment),
    }


def _states(title: str, states: dict[Patch, State]) -> Table:
    table = Table(title=title)
    for column in ("patch", "state", "why"):
        table.add_column(column, overflow="fold")
    for patch, state in states.items():
        colour = _COLOURS.get(state.status, "green")
        table.add_row(patch.id, f"[{colour}]{state.status}[/]", escape(state.reason))
    return table
