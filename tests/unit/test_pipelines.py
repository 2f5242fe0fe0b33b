"""The pipelines in ``ci/`` call commands that there are, with options that they have."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from harness.cli._app import app
from harness.gate.scale import Rung, RungResult, RungStatus

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / "ci" / "github").glob("*.yml"))
OUTPUTS = ROOT / "ci" / "github" / "outputs.py"
BOX = ROOT / "ci" / "box" / "gate.sh"
BREAK = ROOT / "ci" / "box" / "break.sh"
DOCS = [ROOT / "docs" / name for name in ("ci.md", "evidence.md", "compare.md")]


def harness_calls(text: str) -> list[list[str]]:
    """Every line that starts the harness, as words; shell expansions are left out."""
    text = text.replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*(?:\S*bin/)?harness (.*)", line)
        if match:
            words = re.sub(r"\$\{[A-Za-z]+:\+(--\S+) [^}]*\}", r"\1 X", match[1])
            words = re.split(r"\s(?:>|\|\||\||&&|#)", words)[0]
            found.append(shlex.split(re.sub(r"\$\{\{.*?\}\}", "static", words)))
    return found


def check(words: list[str]) -> None:
    """Parse as the command line would, without running anything."""
    command: Any = get_command(app)
    context = command.context_class(command, info_name="harness")
    while hasattr(command, "commands"):
        name, command, words = command.resolve_command(context, list(words))
        context = command.context_class(command, info_name=name, parent=context)
    command.make_context(command.name, list(words))


@pytest.mark.parametrize("path", [*WORKFLOWS, BOX, *DOCS], ids=lambda path: path.name)
def test_every_call_of_the_harness_parses(path: Path) -> None:
    calls = harness_calls(path.read_text())
    assert calls or path.name == "ci.yml"
    for words in calls:
        if "..." not in words:
            check(words)


def test_a_call_with_an_option_that_is_not_there_is_found() -> None:
    (words,) = harness_calls("   harness gate latest --reprot x.md\n")
    with pytest.raises(Exception, match="reprot"):
        check(words)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_yaml_whose_jobs_need_jobs_that_there_are(path: Path) -> None:
    body = yaml.safe_load(path.read_text())
    assert body.get("on", body.get(True))
    for job in body["jobs"].values():
        needs = job.get("needs", [])
        assert {*([needs] if isinstance(needs, str) else needs)} <= body["jobs"].keys()
        assert job["steps"]
        # A job without a limit holds a runner for six hours.
        assert job.get("timeout-minutes", 0) or "issues" in job.get("permissions", {})


def test_only_the_job_that_opens_an_issue_may_write() -> None:
    body = yaml.safe_load((ROOT / "ci/github/gate.yml").read_text())
    assert body["permissions"] == {"contents": "read"}
    writing = {name for name, job in body["jobs"].items() if "permissions" in job}
    assert writing == {"tell"}
    assert body["jobs"]["tell"]["permissions"] == {"issues": "write"}


def outputs(tmp_path: Path, body: Any) -> str:
    path = tmp_path / "verdict.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return subprocess.run(
        [sys.executable, str(OUTPUTS), str(path)], capture_output=True, text=True, check=True
    ).stdout


def test_release_and_verdict_are_handed_on_and_nothing_that_is_not_plain(tmp_path: Path) -> None:
    good = {"candidate": {"release": "0.33.0rc1"}, "verdict": "ok-with-patches"}
    assert outputs(tmp_path, good) == "release=0.33.0rc1\nverdict=ok-with-patches\n"
    bad = {"candidate": {"release": "0.33.0\nverdict=ok"}, "verdict": "regressed"}
    assert outputs(tmp_path, bad) == ""
    assert outputs(tmp_path, {"error": {"id": "gate.not-fetched"}}) == ""
    assert outputs(tmp_path, "") == ""


def box(
    tmp_path: Path,
    *words: str,
    gate: int = 0,
    preflight: int = 0,
    tests: int = 0,
    rung: str = '"rung": "gpu", "status": "passed"',
    script: Path = BOX,
    before: tuple[str, ...] = (),
) -> Any:
    """Run the box's pipeline with stand-ins; returns what was called and the exit code."""
    notes = tmp_path / "notes"
    stand_in = tmp_path / "bin"
    stand_in.mkdir(exist_ok=True)
    for name, cases in {
        "harness": f"case $1 in gate) echo '{{\"rungs\": [{{{rung}}}]}}'; exit {gate};; "
        f"preflight) exit {preflight};; esac",
        "python": f"exit {tests}",
    }.items():
        program = stand_in / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {notes}\n{cases}\n')
        program.chmod(0o755)
    done = subprocess.run(
        ["sh", str(script), *before, str(stand_in / "python"), *words],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{stand_in}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stderr.write(done.stderr)
    return done.returncode, notes.read_text().splitlines() if notes.exists() else []


def test_box_climbs_by_the_gates_own_rungs_and_keeps_what_was_proved(tmp_path: Path) -> None:
    code, called = box(tmp_path, "0.26.0", "out", "--", "--slice", "/models/K", "-tp", "8")
    assert code == 0
    (gate,) = called
    words = shlex.split(gate)
    assert words[1:3] == ["gate", "--python"]
    assert words[words.index("--from") + 1] == "0.26.0"
    assert words[words.index("--rungs") + 1] == "static,mock,gpu"
    assert words[words.index("--evidence") + 1] == "out/evidence"
    assert "--slice /models/K -tp 8" in gate
    check(words[1:])
    assert json.loads((tmp_path / "out" / "gate.json").read_text())["rungs"]


@pytest.mark.parametrize("code", [1, 3, 4])
def test_box_ends_with_the_gates_exit_code(tmp_path: Path, code: int) -> None:
    assert box(tmp_path, gate=code)[0] == code


@pytest.mark.parametrize(
    ("rung", "code"),
    [
        ('"rung": "gpu", "status": "skipped", "reason": "preflight DIRTY: GPU 3 has a process"', 4),
        ('"rung": "static", "status": "passed"', 4),
        ('"rung": "full", "status": "passed"', 0),
    ],
)
def test_box_where_no_engine_was_run_is_not_allowed(tmp_path: Path, rung: str, code: int) -> None:
    assert box(tmp_path, rung=rung)[0] == code


def test_box_says_why_no_engine_was_run_whatever_the_gate_ends_with(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rung = '"rung": "gpu", "status": "skipped", "reason": "preflight DIRTY"'
    code, _ = box(tmp_path, rung=rung, gate=4)
    assert code == 4
    assert "preflight DIRTY" in capfd.readouterr().err


def test_box_looks_for_rungs_as_the_gate_writes_them() -> None:
    one = RungResult(Rung.GPU, RungStatus.PASSED, "native: 3 tests passed").to_json()
    assert '"rung": "gpu", "status": "passed"' in json.dumps(one, default=str)


def test_break_loads_onto_clean_gpus_only(tmp_path: Path) -> None:
    code, called = box(tmp_path, "--hs-model", "/models/K", script=BREAK)
    assert code == 0
    assert called[0] == "harness preflight"
    assert "tests/gpu/test_mutations.py" in called[1]
    assert called[1].endswith("-m gpu --hs-require-gpu --hs-model /models/K")
    (tmp_path / "notes").unlink()
    code, called = box(tmp_path, script=BREAK, preflight=3)
    assert (code, called) == (3, ["harness preflight"])


def test_break_on_a_cpu_asks_for_no_gpu_and_keeps_the_exit_code(tmp_path: Path) -> None:
    code, called = box(tmp_path, script=BREAK, before=("--cpu",), tests=1)
    assert code == 1
    assert len(called) == 1
    assert "tests/engine/test_mutations.py" in called[0]
    assert "gpu" not in called[0].replace("--cpu", "")
