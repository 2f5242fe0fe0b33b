"""``harness gate --bisect``."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from harness.cli._outcome import print_json, say
from harness.errors import NotComparable, UsageError
from harness.gate.bisect import VERDICT, Check, Turn, between, first_turn, static_check
from harness.gate.static import GENERATIONS
from harness.seams import Surface, recorded, releases
from harness.seams.recorded import ADDED


def show_turn(good: str, bad: str, check: str, *, on_cpu: bool, json_output: bool) -> None:
    """Find and print the release; nothing is found: ``NotComparable``."""
    chosen = between(good, bad, releases())
    if on_cpu:
        with _engine(check) as ask:
            turn = first_turn(check, chosen, ask)
    else:
        turn = first_turn(check, chosen, static_check(check, _surface, good), every=True)
    if json_output:
        print_json(turn.to_json() | {"rung": "cpu" if on_cpu else "static"})
        return
    _show(turn)


def _surface(release: str) -> Surface:
    try:
        return recorded(release)
    except NotComparable as error:
        if error.failure.id != "seams.no-record":
            raise
        # What a gate is told here, to give a wheel, is nothing that a bisection takes.
        raise NotComparable(
            "bisect.no-record",
            expected=error.failure.expected,
            found=release,
            where="--bisect",
            next="a bisection asks recorded releases and takes no wheel; to have one more, "
            f"harness surface record WHEEL --out FOLDER and {ADDED}=FOLDER",
        ) from error


@contextlib.contextmanager
def _engine(check: str) -> Iterator[Check]:
    if check not in (VERDICT, *GENERATIONS):
        raise UsageError(
            "bisect.no-check",
            expected=f"{VERDICT} or {' or '.join(GENERATIONS)} with --rungs cpu",
            found=check,
            where="--check",
            next="leave --rungs out for checks of the files alone",
        )
    # It imports engines and models, which checks of the files alone do not need.
    from harness.gate.cpu import engine_check, own_workplace

    with tempfile.TemporaryDirectory(prefix="harness-bisect-") as folder:
        place = own_workplace(Path(folder))
        capture = None if check == VERDICT else check
        yield engine_check(place, capture, progress=say)


def _show(turn: Turn) -> None:
    console = Console()
    console.print(f"[bold]{turn.first}[/] is the first release where {escape(turn.check)} turns")
    console.print(f"  {turn.last_good}: {escape(turn.before)}")
    console.print(f"  {turn.first}: {escape(turn.after)}")
    say(f"{len(turn.asked)} releases asked, {turn.good} to {turn.bad}")
