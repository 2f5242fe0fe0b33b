"""In 80 columns, as a pipe has them too, no command to be copied is cut or wrapped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fixtures import fake_nvml
from harness import state
from harness.cli import _doctor, _engine, _preflight, _reclaim
from harness.cli._outcome import tell
from harness.doctor import Check
from harness.errors import Failure
from harness.host.processes import Process
from harness.preflight._check import Scene
from harness.preflight._visible import resolve
from harness.preflight.check import judge
from harness.preflight.need import Need
from harness.preflight.report import Report, report
from harness.reclaim import Action, Step

STATES = ("story-dirty", "r46-orphans", "no-gpu")


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[Report, list[str]]:
    box = fake_nvml.load(name)
    census = fake_nvml.read(box)
    scene = Scene(
        census,
        resolve(census, {}),
        fake_nvml.FakeProcesses(box),
        fake_nvml.machine(box),
        Need(devices=None),
    )
    made = report(scene, judge(scene), seconds=0.0)
    assert made.problems
    _preflight.show(made)
    return made, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", STATES)
def test_preflight_prints_each_next_command_whole(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made, lines = shown(name, capsys)
    for finding in made.problems:
        assert f"    next: {finding.next}" in lines
    assert all(len(line) <= 80 and "next" not in line for line in lines if line[:1] in "┃│")


def test_preflight_keeps_the_column_of_commands_where_it_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, lines = shown("story-dirty", capsys)
    assert any("┃ next" in line for line in lines)
    assert any("│ sudo fuser -v /dev/nvidia2" in line for line in lines)


def test_doctor_prints_each_next_command_whole(capsys: pytest.CaptureFixture[str]) -> None:
    next = "harness gate --python /opt/environments/vllm/bin/python says what moved and where to"
    _doctor._show([Check("recipe", "fail", "not so [/red]", next), Check("x", "ok", "so")])
    assert f"    next: {next}" in capsys.readouterr().out.splitlines()


def test_reclaim_prints_each_command_whole(capsys: pytest.CaptureFixture[str]) -> None:
    why = "its owner (pid 4000001) runs; end it all the same with --pid 4000002"
    step = Step(Action.LEAVE, (Process(4000002, 1, name="VLLM::Worker_TP1"),), why)
    _reclaim._show_plan((step,), None, False)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "all the same" in line]
    assert why in line


def test_engine_prints_its_commands_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(state.VARIABLE, str(tmp_path))
    folder = tmp_path / state.LEASES
    folder.mkdir()
    (folder / f"{'n' * 40}.json").write_text(json.dumps({"protocol": 2}))
    _engine.status(json_output=False)
    path = folder / f"{'n' * 40}.json"
    assert f"rm {path} forgets the record" in capsys.readouterr().out


def test_errors_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    next = "harness extract --model " + "m" * 90
    tell(Failure("a.b", expected="one", found="another", where="w" * 90, next=next))
    assert f"  next:     {next}" in capsys.readouterr().err.splitlines()
