"""``harness evidence``: what was proved of which pair."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._options import Json
from harness.cli._outcome import command, print_json
from harness.errors import ExitCode, UsageError
from harness.gate.candidate import version_of
from harness.gate.compatibility import page
from harness.gate.evidence import PASSED, Evidence, read_all
from harness.gate.vouching import newest_proved, standing
from harness.seams import recorded, releases

app = typer.Typer(help="What was proved, of which pair, on which rung.", no_args_is_help=True)

_CAPTURES = ("patched", "native")
_DEVICES = ("cpu", "cuda")
_FOLDER = "Folder of evidence; by default the one that comes with the harness."


@app.command("list")
@command
def list_(
    folder: Annotated[Path | None, typer.Option("--evidence", help=_FOLDER)] = None,
    json_output: Json = False,
) -> None:
    """Show every file of evidence; a broken one is an error."""
    found = read_all(folder)
    if json_output:
        print_json({"evidence": [{"file": one.file, **one.to_json()} for one in found]})
        return
    table = Table(title=f"{len(found)} files of evidence")
    for column in ("vLLM", "device", "rung", "date", "capture", "outcome", "error"):
        table.add_column(column, overflow="fold")
    for one in found:
        for proof in one.proofs:
            error = proof.figures.get("max_rel_err")
            table.add_row(
                *(one.pair.vllm, escape(one.pair.hardware), one.rung, one.date),
                *(
                    proof.capture,
                    escape(proof.outcome if proof.outcome == PASSED else proof.reason),
                ),
                "" if error is None else f"{error:.1e}",
            )
    Console().print(table)


@app.command("table")
@command
def table(
    folder: Annotated[Path | None, typer.Option("--evidence", help=_FOLDER)] = None,
) -> None:
    """Print the page of tested pairs, docs/compatibility.md, as Markdown."""
    sys.stdout.write(page(read_all(folder), [recorded(one) for one in releases()]))


@app.command("of")
@command
def of(
    release: Annotated[str, typer.Argument(help="A vLLM release, such as 0.32.0.")],
    device: Annotated[str, typer.Option(help="Where it shall run: cpu or cuda.")] = "cuda",
    folder: Annotated[Path | None, typer.Option("--evidence", help=_FOLDER)] = None,
    json_output: Json = False,
) -> None:
    """Say what is proved of a release on a kind of device, capture by capture.

    Exit code 0: each capture passed on this very release there; 2: that is no release; 4: one
    did not pass, or was never run. Evidence of a newer release or of another device vouches for
    nothing.
    """
    if device not in _DEVICES:
        raise UsageError(
            "evidence.no-such-device",
            expected=" or ".join(_DEVICES),
            found=device,
            where="--device",
            next=f"harness evidence of {release} --device {_DEVICES[0]}",
        )
    release = release.removeprefix("vllm==")
    if version_of(release) is None:
        raise UsageError(
            "evidence.not-a-release",
            expected="a vLLM release, such as 0.32.0",
            found=release,
            where="harness evidence of",
            next="harness evidence list shows every release that was run",
        )
    found = read_all(folder)
    answers = {capture: _answer(found, release, device, capture) for capture in _CAPTURES}
    if json_output:
        print_json({"release": release, "device": device, "captures": answers})
    else:
        for capture, answer in answers.items():
            colour = "green" if answer["proved"] else "yellow"
            Console().print(f"{capture}: [{colour}]{escape(answer['words'])}[/]", soft_wrap=True)
    if not all(answer["proved"] for answer in answers.values()):
        raise typer.Exit(int(ExitCode.UNKNOWN))


def _answer(found: Sequence[Evidence], release: str, device: str, capture: str) -> dict[str, Any]:
    # 0.32, v0.32.0 and 0.32.0 are one release.
    own = [one for one in found if one.pair.release == version_of(release)]
    newest = newest_proved(own, capture=capture, device=device)
    if newest is not None:
        pair = newest.pair
        words = f"passed on {pair.hardware} with torch {pair.torch}, {newest.rung}, {newest.date}"
        return {"proved": True, "words": words, "file": newest.file}
    held = [one for one in own if one.pair.device == device and one.proof(capture) is not None]
    if held:
        proof = held[-1].proof(capture)
        assert proof is not None
        words = f"{proof.outcome}: {proof.reason}"
        return {"proved": False, "words": words, "file": held[-1].file}
    best = newest_proved(found, capture=capture, device=device)
    if best is None:
        return {"proved": False, "words": f"never run on {device}", "file": ""}
    stands = standing(best, candidate=release, device=device)
    words = f"never run on {device}; " + (
        stands.reason or f"the newest that passed is {best.pair.vllm} ({best.date})"
    )
    return {"proved": False, "words": words, "file": ""}
