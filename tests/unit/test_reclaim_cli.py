"""``harness reclaim`` on real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from harness import state
from harness.cli import _reclaim, app
from harness.host import processes
from harness.host.leftovers.record import recorded
from harness.host.processes import Process
from harness.reclaim import Patience
from tests.unit import hosts

if TYPE_CHECKING:
    from click.testing import Result

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(_reclaim, "Patience", partial(Patience, polite=0.3))
    monkeypatch.setenv(state.VARIABLE, str(tmp_path / "state"))
    return tmp_path / "state"


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["reclaim", *args])


def told(*args: str) -> tuple[int, dict[str, Any]]:
    result = run(*args, "--json")
    return result.exit_code, json.loads(result.stdout)


@dataclass
class Abandoned:
    """What a session left: its owner and its reaper were killed in one moment."""

    family: list[Process]
    folder: Path


def start_parent(folder: Path) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    script = hosts.CHILDREN / "host_parent.py"
    program = subprocess.Popen(
        [sys.executable, str(script), str(folder / "log"), str(folder / "pids"), "idle"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert program.stdout is not None
    facts: dict[str, Any] = json.loads(program.stdout.readline())
    return program, facts


@pytest.fixture
def abandoned(tmp_path: Path) -> Iterator[Abandoned]:
    program, facts = start_parent(tmp_path)
    engine, reaper, *family = hosts.named(facts["pids"])
    # Stopped, so that it does not end the tree in the moment between the two signals.
    processes.send(reaper, signal.SIGSTOP)
    program.kill()
    program.communicate()
    processes.send(reaper, signal.SIGKILL)
    assert hosts.running_after([engine, reaper], 5) == []
    yield Abandoned(family, Path(facts["folder"]))
    for process in family:
        processes.send(process, signal.SIGKILL)


@pytest.fixture
def stranger() -> Iterator[Process]:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as program:
        yield hosts.named([program.pid])[0]
        program.kill()


def test_nothing_started_means_clean() -> None:
    result = run()
    assert (result.exit_code, result.stdout) == (
        0,
        "clean: no engine of the harness runs, and none has left anything\n",
    )
    assert told("--yes") == (0, {"dry_run": False, "clean": True, "steps": []})


def test_dry_run_touches_nothing_of_what_a_killed_session_left_and_yes_ends_it_all(
    abandoned: Abandoned,
) -> None:
    code, body = told()
    assert code == 0
    assert body["dry_run"] is True
    assert body["clean"] is False
    (step,) = body["steps"]
    assert step["action"] == "end"
    assert {p["pid"] for p in step["processes"]} == {p.pid for p in abandoned.family}
    assert body["next"] == "harness reclaim --yes"
    result = run()
    assert result.exit_code == 0
    assert "nothing was done" in result.stdout
    assert "next: harness reclaim --yes" in result.stderr
    assert hosts.running(abandoned.family) == abandoned.family
    assert len(list(recorded())) == 1

    code, body = told("--yes")
    assert code == 0
    (step,) = body["steps"]
    assert len(step["ended"]) == 5
    assert step["problems"] == []
    assert hosts.running(abandoned.family) == []
    assert not abandoned.folder.exists()
    assert list(recorded()) == []
    assert told("--yes") == (0, {"dry_run": False, "clean": True, "steps": []})


def test_engine_of_a_live_owner_is_only_ended_when_it_is_named(tmp_path: Path) -> None:
    program, facts = start_parent(tmp_path)
    try:
        everyone = hosts.named(facts["pids"])
        code, body = told("--yes")
        assert (code, body["steps"][0]["action"]) == (0, "leave")
        assert hosts.running(everyone) == everyone
        assert "left alone" in run("--yes").stdout
        code, body = told("--pid", str(everyone[-1].pid), "--yes")
        assert code == 0
        assert hosts.running_after(everyone, 5) == []
        assert program.poll() is None
    finally:
        program.kill()
        program.communicate()


def test_stranger_is_ended_by_the_command_that_the_dry_run_printed(stranger: Process) -> None:
    assert told("--yes") == (0, {"dry_run": False, "clean": True, "steps": []})
    code, body = told("--pid", str(stranger.pid))
    assert code == 0
    assert processes.alive(stranger)
    assert body["next"] == f"harness reclaim --pid {stranger.pid}:{stranger.start} --yes"
    result = run(*body["next"].split()[2:])
    assert result.exit_code == 0
    assert "1 processes ended" in result.stdout
    assert not processes.alive(stranger)


def test_pid_that_was_given_out_again_is_refused(stranger: Process) -> None:
    result = run("--pid", f"{stranger.pid}:{stranger.start - 1}", "--yes")
    assert result.exit_code == 3
    assert "given out again" in result.stderr
    assert processes.alive(stranger)


@pytest.mark.parametrize(("args", "code"), [(("--pid", "x"), 2), (("--pid", "1"), 3)])
def test_bad_and_protected_pids_end_with_their_codes(args: tuple[str, ...], code: int) -> None:
    assert run(*args, "--yes").exit_code == code
