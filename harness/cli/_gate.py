"""``harness gate``: may vLLM be upgraded?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from harness.cli._bisect import show_turn
from harness.cli._gate_tables import show
from harness.cli._gate_usage import (
    alone,
    read_by_a_rung,
    rungs_of,
    shown_in_a_report,
    told_of_a_source,
    told_with_bisect,
)
from harness.cli._options import Json
from harness.cli._outcome import command, print_json, say
from harness.errors import NotComparable, UsageError
from harness.gate.against import against
from harness.gate.bisect import VERDICT
from harness.gate.candidate import Candidate, candidate_of, known, known_good, version_named
from harness.gate.evidence import Evidence, keep, read_all, require_folder
from harness.gate.ladder import climbers_with, run_gate
from harness.gate.scale import Rung
from harness.gate.verdict import GateResult

_PROVING = {Rung.CPU, Rung.GPU, Rung.FULL}
_CANDIDATE = (
    "A version such as 0.33.0 (recorded, or fetched by pip), latest, a wheel, a source archive, "
    "a folder that holds vllm/, an environment or its interpreter. A folder that is called as a "
    "version is ./0.33.0. Without it, --python."
)


@command
def gate(
    candidate: Annotated[str | None, typer.Argument(help=_CANDIDATE)] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="The release that works for you, named as the candidate is. By default the "
            "newest recorded one that is not newer than the candidate.",
        ),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(help="Interpreter of an environment with the candidate, for rung cpu and up."),
    ] = None,
    rungs: Annotated[
        str,
        typer.Option(help="What to climb: static, mock, cpu, gpu, full, parted by commas."),
    ] = "static",
    release: Annotated[
        str | None, typer.Option(help="Version of a source that does not tell it.")
    ] = None,
    bisect: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="Instead of a candidate: name the first of the recorded releases between two "
            "(no wheels) where --check turns.",
            metavar="GOOD BAD",
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            help="With --bisect: verdict (the default), a generation, a consumer, a probe or a "
            "seam; with --rungs cpu the capture whose engine suite is run: patched or native."
        ),
    ] = None,
    slice_: Annotated[
        Path | None,
        typer.Option(
            "--slice",
            help="Checkpoint for rung gpu, such as one of `harness model make kimi-k2.5-slice`. "
            "By default the tiny model that pytest makes.",
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Checkpoint for rung full: the whole Kimi-K2.5.")
    ] = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel-size",
            "-tp",
            min=1,
            help="GPUs that share the model on rungs gpu and full. By default 1 and 8.",
        ),
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(
            help="Also write what rungs cpu, gpu and full proved into this folder, a file each; "
            "the other rungs prove nothing.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Also write the answer to this file, FILE.html: HTML that needs nothing beside "
            "it, or FILE.md: Markdown for a pull request.",
        ),
    ] = None,
    report_prompts: Annotated[
        bool,
        typer.Option(
            "--report-prompts",
            help="Show the engine suite's prompts in the report. Without it no prompt and no "
            "token id is in it.",
        ),
    ] = False,
    json_output: Json = False,
) -> None:
    """Say what a vLLM release breaks, before it is installed, and climb to proof.

    Exit code 0: ok, or ok with patches; 1: regressed; 4: unknown, not comparable, or a rung
    that was named could not be climbed. With --bisect: 0 where the release is found, 4 where
    the check does not turn.
    """
    wanted = rungs_of(rungs)
    if bisect is not None:
        beside = {
            "CANDIDATE": candidate,
            "--from": from_,
            "--python": python,
            "--release": release,
            "--evidence": evidence,
            "--report": report,
            "--slice": slice_,
            "--model": model,
            "-tp": tensor_parallel_size,
            "--report-prompts": report_prompts or None,
        }
        alone([name for name, given in beside.items() if given is not None], wanted)
        show_turn(*bisect, check or VERDICT, on_cpu=Rung.CPU in wanted, json_output=json_output)
        return
    told_of_a_source(candidate, release)
    read_by_a_rung("--slice", slice_, (Rung.GPU,), wanted)
    read_by_a_rung("--model", model, (Rung.FULL,), wanted)
    read_by_a_rung("-tp", tensor_parallel_size, (Rung.GPU, Rung.FULL), wanted)
    told_with_bisect(check)
    shown_in_a_report(report_prompts, report)
    # What would spoil the writing is told now, and not after an hour of engines.
    if evidence is not None and _PROVING & set(wanted):
        require_folder(evidence)
    if report is not None:
        _require_target(report)
    recorded = _recorded()
    with _named(candidate, python, release) as asked, _known(from_, asked) as good:
        result = run_gate(
            asked,
            good,
            rungs=wanted,
            python=python,
            climbers=climbers_with(slice_=slice_, model=model, ranks=tensor_parallel_size),
        )
        result = replace(result, evidence=against(recorded, asked.version))
    if evidence is not None:
        kept = [keep(evidence, one.figures) for one in result.rungs if one.proves]
        if not kept:
            say(f"no evidence is written to {evidence}: no engine was run")
    if report is not None:
        _save(report, result, recorded, prompts=report_prompts)
    if json_output:
        print_json(result.to_json())
    else:
        show(result)
    raise typer.Exit(int(result.verdict.exit_code))


def _recorded() -> tuple[Evidence, ...]:
    try:
        return read_all()
    except NotComparable:
        return ()  # an installation without evidence answers by the files all the same


def _require_target(report: Path) -> None:
    # Most answers are only printed, and need none of what makes a report.
    from harness.gate.report import require_target

    require_target(report)


def _save(
    report: Path, result: GateResult, recorded: tuple[Evidence, ...], *, prompts: bool
) -> None:
    from harness.gate.report import save

    save(report, result, recorded, prompts=_prompts() if prompts else None)


def _prompts() -> dict[str, list[int]]:
    # It imports engines and models, which rung static does not need.
    from harness.gate.engine_suite import prompts

    return prompts()


@contextmanager
def _named(candidate: str | None, python: Path | None, release: str | None) -> Iterator[Candidate]:
    name = candidate or (str(python) if python is not None else None)
    if name is None:
        raise UsageError(
            "gate.no-candidate",
            expected="a candidate, or --python with the interpreter of its environment",
            found="neither",
            where="the command line",
            next="harness gate 0.32.0, or harness gate --help",
        )
    _say_if_beside(name)
    with candidate_of(name, release=release) as found:
        if candidate is not None and python is not None:
            _require_same(found, python)
        yield found


@contextmanager
def _known(name: str | None, asked: Candidate) -> Iterator[Candidate | None]:
    if name is not None:
        _say_if_beside(name)
        with candidate_of(name) as found:
            yield found
        return
    release = known_good(asked)
    yield known(release) if release is not None else None


def _say_if_beside(name: str) -> None:
    """Tell of files that are called as the release that was taken."""
    release = version_named(name)
    if release is not None and Path(name).exists():
        say(f"{name} is taken for the release; what lies here under that name is ./{name}")


def _require_same(asked: Candidate, python: Path) -> None:
    with candidate_of(str(python)) as there:
        if there.side.release != asked.side.release:
            raise UsageError(
                "gate.other-environment",
                expected=f"an environment with vLLM {asked.side.release}",
                found=f"vLLM {there.side.release}",
                where=str(python),
                next="leave --python out, or name the interpreter alone",
            )
