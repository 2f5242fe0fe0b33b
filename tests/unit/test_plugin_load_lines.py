"""A load in pytest's and the command's output: a line a phase, and what an early end saved."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from harness.cli import _outcome, _progress
from harness.host.supervision.policy import LoadProgress
from tests.unit.plugins import Inner, inner

__all__ = ["inner"]
pytest_plugins = ["pytester"]

AT = LoadProgress(
    phase="weights",
    where="weights 3 of 64",
    done=3,
    total=64,
    seconds=130.0,
    expected_s=1200.0,
    eta_s=1070.0,
    why="the last load of this kind",
    new_phase=True,
)
SOURCE = """
    def test_one(engine):
        print("captured")
"""


def test_each_phase_has_its_line_past_the_capture_and_the_next_load_knows_its_time(
    inner: Inner,
) -> None:
    for number in range(2):
        result = inner.run(SOURCE)
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(
            ["harness: loading: import, 0:00*", "harness: loading: ready, 0:0*"]
        )
        result.stdout.no_fnmatch_line("captured")
        # The first one is estimated by size, the second one measured by the first.
        result.stdout.no_fnmatch_line("*0:30 left" if number else "*0:00 left")
    (record,) = (inner.pytester.path / "state").glob("loads/*.json")
    assert json.loads(record.read_text())["seconds"] < 30


def test_no_line_is_written_where_the_user_wants_silence(inner: Inner) -> None:
    result = inner.run(SOURCE, "-qq")
    result.stdout.no_fnmatch_line("*loading*")


def test_doomed_load_fails_the_test_at_once_and_the_summary_says_what_it_saved(
    inner: Inner,
) -> None:
    inner.python.behave(load="doomed")
    result = inner.run(SOURCE)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "engine failure: host.doomed: killed at 0:0* of an expected 0:30 (estimated from * GB "
            "of weights), 0:* saved: Worker_TP1 (pid 7) says: torch.OutOfMemoryError*"
        ]
    )
    assert not inner.python.running()


def test_warning_is_repeated_in_the_summary(inner: Inner) -> None:
    inner.python.behave(load="doomed")
    result = inner.run(SOURCE, "--hs-supervise=line=warn", "--hs-load-deadline=2")
    result.stdout.fnmatch_lines(
        ["harness: warning: Worker_TP1 (pid 7) says*", "engine warning: Worker_TP1 (pid 7) says*"]
    )
    result.stdout.fnmatch_lines(["engine failure: host.deadline*"])


def test_bad_policy_is_named_with_its_option(inner: Inner) -> None:
    result = inner.run(SOURCE, "--hs-supervise=stall=perhaps")
    result.stdout.fnmatch_lines(["*supervise.bad-policy*", "*--hs-supervise*"])
    assert inner.python.loads == 0


def test_text_tells_phase_time_and_what_is_left() -> None:
    assert AT.text == "loading: weights 3 of 64, 2:10, about 17:50 left"
    late = replace(AT, eta_s=0.0, seconds=1300.0)
    assert late.text == "loading: weights 3 of 64, 21:40, longer than the expected 20:00"
    unknown = replace(AT, eta_s=None, expected_s=None)
    assert unknown.text == "loading: weights 3 of 64, 2:10"


def test_command_line_prints_a_line_a_phase_where_stderr_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    for module in (_progress, _outcome):
        monkeypatch.setattr(module, "log", console)
    observer = _progress.ConsoleObserver(1, 1)
    observer.stage("load", "/m")
    observer.loading(AT)
    observer.loading(replace(AT, new_phase=False, where="weights 4 of 64"))
    observer.warning("[low] on memory")
    observer.close()
    assert out.getvalue().splitlines() == [
        "loading the engine: /m",
        "loading: weights 3 of 64, 2:10, about 17:50 left",
        "warning: [low] on memory",
    ]


def test_command_line_updates_its_status_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(_progress, "log", Console(file=out, width=200, force_terminal=True))
    observer = _progress.ConsoleObserver(1, 1)
    observer.stage("load", "/m")
    observer.loading(replace(AT, new_phase=False))
    observer.close()
    assert "weights 3 of 64" in out.getvalue()
