"""``harness surface record``, ``show`` and ``diff``."""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._options import Json
from harness.cli._outcome import command, print_json, say
from harness.errors import UsageError
from harness.seams import Consumer, Finding, Surface, bind, read_surface, surface_of
from harness.seams.diff import diff

app = typer.Typer(
    help="What a vLLM release offers where the harness and speculators touch it.",
    no_args_is_help=True,
)

_SOURCE = "A wheel, a source archive, a folder that holds vllm/, or an interpreter."


@app.command("record")
@command
def record(
    source: Annotated[str, typer.Argument(help=_SOURCE)],
    out: Annotated[
        Path | None,
        typer.Option(help="File, or a folder that is there, for RELEASE.json; stdout without it."),
    ] = None,
    release: Annotated[
        str | None, typer.Option(help="Version of a source that does not tell it.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Read a release without importing it, and write its surface as JSON."""
    surface = read_surface(source, release=release).whole()
    if out is None:
        sys.stdout.write(surface.dumps())
        return
    path = out / f"{surface.release}.json" if out.is_dir() else out
    _write(path, surface)
    if json_output:
        print_json(_head(surface) | {"out": str(path)})
    else:
        say(f"{surface.build} {surface.release} written to {path}")


@app.command("show")
@command
def show(
    name: Annotated[str, typer.Argument(help=f"A recorded release such as 0.16.0. {_SOURCE}")],
    json_output: Json = False,
) -> None:
    """Show a release's probes, and which calls would not get through to it."""
    surface = surface_of(name)
    findings = bind(surface)
    if json_output:
        print_json(
            _head(surface)
            | {
                "probes": dict(surface.probes),
                "findings": [vars(one) | {"reason": one.reason} for one in findings],
                "entries": {id: entry.to_json() for id, entry in surface.entries.items()},
            }
        )
        return
    console = Console()
    console.print(_probes(surface))
    console.print(_findings(findings))


@app.command("diff")
@command
def diff_surfaces(
    first: Annotated[str, typer.Argument(help=f"A recorded release such as 0.16.0. {_SOURCE}")],
    second: Annotated[str, typer.Argument(help="The other one.")],
    json_output: Json = False,
) -> None:
    """Show all that differs between two releases; harness gate says what of it matters."""
    old, new = surface_of(first), surface_of(second)
    found = diff(old, new)
    if json_output:
        print_json(
            {
                "first": _head(old),
                "second": _head(new),
                "differences": [vars(one) for one in found],
            }
        )
        return
    if not found:
        Console().print(f"{old.release} and {new.release} offer the same at every seam")
        return
    table = Table(title=f"from {old.release} to {new.release}")
    for column in ("seam or probe", "part", "before", "after"):
        table.add_column(column, overflow="fold")
    for one in found:
        table.add_row(*map(escape, (one.id, one.member or one.of, one.before, one.after)))
    Console().print(table)


def _head(surface: Surface) -> dict[str, str]:
    return {"release": surface.release, "build": surface.build, "digest": surface.digest}


def _probes(surface: Surface) -> Table:
    table = Table(title=f"probes of {surface.build} {surface.release}")
    table.add_column("probe")
    table.add_column("value", overflow="fold")
    for probe, value in sorted(surface.probes.items()):
        table.add_row(probe, escape(value))
    return table


def _findings(findings: tuple[Finding, ...]) -> Table:
    table = Table(title="who gets through")
    for column in ("consumer", "seam", "finding"):
        table.add_column(column, overflow="fold")
    for consumer in Consumer:
        met = [one for one in findings if one.by is consumer]
        for one in met:
            table.add_row(escape(one.by), escape(one.seam), escape(one.reason))
        if not met:
            table.add_row(escape(consumer), "all", "[green]ok[/]")
    return table


def _write(path: Path, surface: Surface) -> None:
    try:
        # A folder that was meant and is not there must not become a file of its name.
        if not path.suffix and not path.exists():
            raise FileNotFoundError(errno.ENOENT, "no such folder, and a file's name has an ending")
        path.write_text(surface.dumps(), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "seams.cannot-write",
            expected="a file that can be written",
            found=error.strerror or str(error),
            where=str(path),
            next="choose another --out",
        ) from error
