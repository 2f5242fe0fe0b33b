"""Usage errors: text on stderr, and under --json one JSON object on stdout."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from harness.cli import app

WRONG = {
    "preflight --nope --json": "usage.unknown-option",
    "--json": "usage.unknown-option",
    "plan --json --profile": "usage.bad-option",
    "plan --json -tp zero": "usage.bad-value",
    "plan --json -tp 0": "usage.bad-value",
    "engine start --json": "usage.missing",
    "engine stop a b --json": "usage.wrong",
    "nope --json": "usage.wrong",
    "plan --model  --json": "usage.bad-value",
    "preflight --json --model=": "usage.bad-value",
}


@pytest.mark.parametrize("words", WRONG)
def test_each_usage_error_under_json_ends_with_one_object(words: str) -> None:
    done = CliRunner().invoke(app, words.split(" "))
    assert done.exit_code == 2
    (line,) = done.stdout.splitlines()
    error = json.loads(line)["error"]
    assert error["id"].startswith(WRONG[words])
    assert set(error) == {"id", "expected", "found", "where", "next"}
    assert all(error.values())
    group = [word for word in words.split() if word in ("preflight", "plan", "engine", "start")]
    command = " ".join(["harness", *group, *(["stop"] if "stop" in words else [])])
    assert (error["where"], error["next"]) == (command, f"{command} --help")
    assert "Error" in done.stderr


def test_without_json_a_usage_error_prints_nothing_on_stdout() -> None:
    done = CliRunner().invoke(app, ["preflight", "--nope"])
    assert (done.exit_code, done.stdout) == (2, "")


def test_what_follows_two_dashes_is_another_commands() -> None:
    words = ["patches", "run", "--nope", "--", "python", "x.py", "--json"]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, "")


def test_an_empty_value_is_named_with_its_option() -> None:
    done = CliRunner().invoke(app, ["preflight", "--model", ""])
    assert done.exit_code == 2
    assert "The value of --model is empty" in done.stderr
    done = CliRunner().invoke(app, ["verify", ""])
    assert "An argument is empty" in done.stderr


def _help(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "300")
    return " ".join(CliRunner().invoke(app, [name, "--help"]).stdout.split())


def test_rehearse_says_what_its_layers_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = _help("rehearse", monkeypatch)
    assert "Layer ids, as for extract: as many are captured, in their order." in said


@pytest.mark.parametrize("name", ["rehearse", "extract"])
def test_skipping_the_gate_points_to_its_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "(docs/gate.md)" in _help(name, monkeypatch)
