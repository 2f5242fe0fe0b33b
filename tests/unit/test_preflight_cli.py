"""`harness preflight`, and `harness extract` onto GPUs, from their command lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fixtures import fake_nvml
from harness.cli import app
from tests.unit.interpreters import StandIn

if TYPE_CHECKING:
    from click.testing import Result


class Box:
    """This machine, with the GPUs of a state, to the commands of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr("harness.preflight.run.cuda_of", lambda python: "")

    def __call__(self, state: dict[str, Any], *words: str) -> Result:
        replace = self._monkeypatch.setattr
        replace("harness.preflight.probe.census", lambda probe: fake_nvml.read(state, probe))
        replace("harness.preflight.check.look", lambda *_, **__: fake_nvml.machine(state))
        replace("harness.preflight.check.SystemProcesses", lambda: fake_nvml.FakeProcesses(state))
        return CliRunner().invoke(app, list(words))

    def named(self, name: str, *words: str) -> Result:
        return self(fake_nvml.load(name), "preflight", *words)


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Box:
    return Box(monkeypatch)


def test_the_storys_boxes_end_with_0_and_3(box: Box) -> None:
    clean, dirty = box.named("story-clean", "-tp", "8"), box.named("story-dirty", "-tp", "8")
    assert (clean.exit_code, dirty.exit_code) == (0, 3)
    assert "CLEAN in" in clean.stdout
    (line,) = [line for line in dirty.stdout.splitlines() if line.startswith("│ 2 ")]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[1:] == [
        "75,728",
        "none visible",
        "",
        "",
        "",
        "DIRTY",
        "sudo fuser -v /dev/nvidia2",
    ]


def test_a_holder_is_shown_with_pid_user_command_and_age(box: Box) -> None:
    shown = box.named("r46-orphans").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("│ 1 ")]
    for text in ("502", "ada", "VLLM::Worker_TP1", "1:30:00", "harness reclaim --pid 502"):
        assert text in line


def test_json_holds_the_verdict_each_device_and_every_finding(box: Box) -> None:
    result = box.named("story-dirty", "--json")
    body = json.loads(result.stdout)
    assert (result.exit_code, body["verdict"]) == (3, "DIRTY")
    assert [device["verdict"] for device in body["devices"]].count("DIRTY") == 1
    assert body["devices"][2]["used"] == 75_728 << 20
    assert {finding["check"] for finding in body["findings"]} == {"memory.used", "memory.need"}


@pytest.mark.parametrize("name", ["no-gpu", "r56-no-memory-info", "order-unknown"])
def test_unknown_ends_with_3(box: Box, name: str) -> None:
    result = box.named(name)
    assert result.exit_code == 3
    assert "UNKNOWN in" in result.stdout


def test_a_machine_without_gpus_is_told_so_in_one_sentence(box: Box) -> None:
    shown = box.named("no-gpu").stdout
    assert "there is no NVIDIA GPU on this machine" in shown
    assert "NVML" not in shown
    assert "Traceback" not in shown


def test_a_check_can_be_left_out_and_an_unknown_one_is_refused(box: Box) -> None:
    assert box.named("story-dirty", "--skip", "memory").exit_code == 0
    assert box.named("story-dirty", "--skip", "memory.used", "--skip", "nvml").exit_code == 3
    assert box.named("story-dirty", "--skip", "memry").exit_code == 2


def test_a_model_is_held_against_the_boards(box: Box) -> None:
    few = box.named("story-clean", "--profile", "kimi-k2.5", "-tp", "4")
    assert few.exit_code == 3
    assert "the model takes" in few.stdout
    assert box.named("story-clean", "--profile", "kimi-k2.5-tiny", "-tp", "4").exit_code == 0
    assert box.named("clean-h200", "--profile", "kimi-k2.5", "-tp", "3").exit_code == 3
    assert box.named("clean-h200", "--profile", "kimi-k2.5", "--model", "m").exit_code == 2


def test_a_real_child_answers_to_the_command(tmp_path: Path) -> None:
    env = fake_nvml.environment(fake_nvml.load("story-dirty"), tmp_path)
    env["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parents[2]}"
    words = ["preflight", "--json", "--deadline", "30", "--skip", "host", "--skip", "driver"]
    command = [sys.executable, "-m", "harness", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (3, "DIRTY")
    assert done.stderr == ""


def test_an_unknown_check_is_told_with_those_that_it_may_mean(box: Box) -> None:
    done = box.named("story-clean", "--skip", "memry", "--json")
    error = json.loads(done.stdout)["error"]
    assert error["id"] == "preflight.unknown-check"
    assert "memory" in error["expected"]
    assert len(error["expected"]) < 100
    assert error["next"] == "harness preflight --markdown lists them"


def test_an_unknown_profile_is_told_with_the_known_ones(box: Box) -> None:
    done = box.named("story-clean", "--profile", "nope", "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["id"]) == (2, "models.unknown-profile")
    assert "kimi-k2.5-slice" in error["expected"]


@pytest.mark.parametrize(
    ("python", "id", "code"),
    [("/nope", "engine.no-interpreter", 2), ("/bin/false", "engine.facts-failed", 4)],
)
def test_an_interpreter_that_is_named_and_does_not_work_is_refused(
    python: str, id: str, code: int
) -> None:
    done = CliRunner().invoke(app, ["preflight", "--python", python, "--json"])
    assert (done.exit_code, json.loads(done.stdout)["error"]["id"]) == (code, id)


class Extraction:
    """An extraction by an engine that says that it uses GPUs."""

    def __init__(
        self, box: Box, folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.box, self.out, self.model = box, folder / "out", model
        self.stand_in = StandIn(folder / "python", device="cuda")
        facts = self.stand_in.folder / "facts.json"
        facts.write_text(json.dumps({**json.loads(facts.read_text()), "gpus": 8}))
        (folder / "prompts.jsonl").write_text('{"id": "a", "input_ids": [1, 2, 3]}\n')
        monkeypatch.setenv("HARNESS_STATE", str(folder / "state"))
        monkeypatch.setenv("HARNESS_GPU_LOCKS", str(folder / "locks"))

    def __call__(self, name: str, *more: str) -> Result:
        words = ["extract", "--json", "--layers", "1,3", "--out", str(self.out)]
        words += ["--max-model-len", "65", "--model", str(self.model)]
        words += ["--prompts", str(self.out.parent / "prompts.jsonl")]
        words += ["--python", str(self.stand_in.python), *more]
        return self.box(fake_nvml.load(name), *words)


@pytest.fixture
def extraction(
    box: Box, tmp_path: Path, tiny_kimi: Path, monkeypatch: pytest.MonkeyPatch
) -> Extraction:
    return Extraction(box, tmp_path, tiny_kimi, monkeypatch)


def test_extraction_onto_a_dirty_gpu_is_refused_before_anything_is_made(
    extraction: Extraction,
) -> None:
    result = extraction("story-dirty", "-tp", "4")
    assert result.exit_code == 3
    failure = json.loads(result.stdout)["error"]
    assert failure["id"] == "preflight.dirty"
    assert "GPU 2: 75,728 MiB used" in failure["found"]
    assert extraction.stand_in.engines() == []
    assert not extraction.out.exists()


@pytest.mark.slow
def test_extraction_goes_on_where_the_look_is_left_out_or_other_gpus_are_used(
    extraction: Extraction,
) -> None:
    assert extraction("story-dirty", "-tp", "4", "--skip-check", "memory").exit_code == 0
    # Everything is there: no engine is loaded, so nobody looks.
    assert extraction("story-dirty", "-tp", "4").exit_code == 0
    assert extraction.stand_in.loads == 1


def test_extraction_with_an_unknown_check_is_a_usage_error(extraction: Extraction) -> None:
    assert extraction("story-clean", "--skip-check", "nothing").exit_code == 2
