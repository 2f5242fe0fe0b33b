"""``harness reclaim``."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.cli._options import Json
from harness.cli._outcome import command, print_json, say
from harness.cli._widths import print_command, print_whole
from harness.errors import ExitCode
from harness.host.leftovers.record import recorded, this_machine
from harness.reclaim import (
    Action,
    Linux,
    Patience,
    Reclaimer,
    Result,
    Step,
    Target,
    find,
    meter_of_this_machine,
    plan,
    plan_for,
)


@command
def reclaim(
    pid: Annotated[
        str | None,
        typer.Option(
            metavar="PID[:START]",
            help="End this process, whoever started it; one of a harness engine stands for the "
            "whole engine. START, as a dry run prints it, guards against a pid that was given "
            "out again.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this, only say what would be done.")
    ] = False,
    deadline: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for device memory to come back.")
    ] = 60.0,
    json_output: Json = False,
) -> None:
    """End engines whose owner is gone, and remove what they left; a dry run without --yes.

    Only what the harness itself started is ended, by its records and marks. An engine whose owner
    runs, and anything of others, is ended only when named with --pid.

    Exit codes: 0 clean, or a dry run; 1 something could not be freed; 2 usage; 3 refused.
    """
    steps = _decide(None if pid is None else Target.parse(pid))
    if not yes:
        _show_plan(steps, pid, json_output)
        return
    reclaimer = Reclaimer(
        Linux(),
        meter_of_this_machine(),
        me=os.getpid(),
        patience=Patience(memory=deadline),
        on_step=lambda step: say(f"{_what(step)}: {step.why}", style="dim"),
    )
    results = reclaimer.carry_out(steps)
    clean = all(result.clean for result in results)
    if json_output:
        found = [result.to_json() for result in results]
        print_json({"dry_run": False, "clean": clean, "steps": found})
    else:
        _show_results(results)
    if not clean:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


def _decide(target: Target | None) -> tuple[Step, ...]:
    system = Linux()
    found = find(system, recorded(), machine=this_machine(), me=os.getpid())
    if target is None:
        return plan(found)
    return plan_for(target, found, system.everything(), me=os.getpid())


def _show_plan(steps: tuple[Step, ...], pid: str | None, json_output: bool) -> None:
    todo = [step for step in steps if step.action is not Action.LEAVE]
    # With the start time, so that the pid means the same process when it is done.
    named = ""
    if pid is not None and todo:
        chosen = next(p for p in todo[0].processes if p.pid == Target.parse(pid).pid)
        named = f" --pid {chosen.pid}:{chosen.start}"
    following = f"harness reclaim{named} --yes" if todo else ""
    if json_output:
        found = [step.to_json() for step in steps]
        print_json({"dry_run": True, "clean": not todo, "steps": found, "next": following})
        return
    if not steps:
        Console().print("clean: no engine of the harness runs, and none has left anything")
        return
    console = Console()
    if not print_whole(console, lambda whys: _table(steps, whys)):
        for step in steps:
            print_command(console, f"{step.action} {_what(step)}: ", step.why)
    if following:
        say(f"next: {following}")


def _table(steps: tuple[Step, ...], whys: bool) -> Table:
    table = Table(title="harness reclaim, dry run: nothing was done")
    columns = ("would", "what", "processes")
    for name in (*columns, "why") if whys else columns:
        table.add_column(name, overflow="fold")
    for step in steps:
        who = ", ".join(f"{p.name or '?'} {p.pid}" for p in step.processes)
        more = [escape(step.why)] if whys else []
        table.add_row(str(step.action), escape(_what(step)), escape(who), *more)
    return table


def _show_results(results: list[Result]) -> None:
    console = Console()
    done = [result for result in results if result.step.action is not Action.LEAVE]
    for result in results:
        step = result.step
        if step.action is Action.LEAVE:
            console.print(f"left alone: {_what(step)}: {step.why}", markup=False, soft_wrap=True)
            continue
        console.print(
            f"{_what(step)}: {len(result.ended)} processes ended, {len(result.removed)} leftovers "
            f"removed in {result.seconds:.1f} s",
            markup=False,
            soft_wrap=True,
        )
        for text, next in result.problems():
            console.print(f"  NOT FREED: {text}", markup=False, soft_wrap=True)
            console.print(f"       next: {next}", markup=False, soft_wrap=True)
    if not done:
        console.print("clean: nothing to reclaim")


def _what(step: Step) -> str:
    engine = step.engine
    if engine is None:
        process = step.processes[0]
        return f"{process.name} (pid {process.pid})"
    model = f" of {engine.record.model}" if engine.record and engine.record.model else ""
    return f"engine {engine.token[:8]}{model}"
