"""Rungs gpu and full without a GPU: a stub in pytest's place, boxes by hand."""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version
from typer.testing import CliRunner

from harness import models
from harness.cli import app
from harness.engine_facts import Inspection
from harness.errors import NotComparable
from harness.gate import _session, candidate, gpu
from harness.gate.evidence import SCHEMA_FILE, read_all
from harness.gate.gpu import Box, GpuOptions, climb
from harness.gate.ladder import climbers_with, run_gate
from harness.gate.scale import Rung, RungResult, RungStatus, Verdict
from harness.gate.verdict import GateResult
from harness.models import KIMI_K25
from harness.preflight import Verdict as Cleanliness
from harness.recipe import EngineFacts, Platform
from harness.seams import recorded

CASES = {
    "passed": '<testcase name="test_rows"/>',
    "skipped": '<testcase name="test_two"><skipped message="needs 2 GPUs"/></testcase>',
    "failed": '<testcase name="test_rows"><failure message="row 3 is wrong\nmore"/></testcase>',
    "error": '<testcase name="test_load"><error message="engine.load-failed: no kernel in '
    '/tmp/env/lib/site-packages/vllm/a.py"/></testcase>',
    "dirty": '<testcase name="test_load"><error message="preflight.dirty: GPU 2 is held"/>'
    "</testcase>",
}
FIGURES = '<property name="figures.test_speed" value="{&quot;ratio&quot;: 0.97}"/>'
STUB = """#!/bin/sh
echo "$@" > {words}
for word in "$@"; do case "$word" in --junitxml=*) report=${{word#--junitxml=}};; esac; done
{before}
{write}
{after}
"""


def stub(tmp_path: Path, *cases: str, code: int = 0, before: str = "", after: str = "") -> Path:
    """A program that plays pytest: writes a report of these cases, and ends with a code."""
    body = "".join(CASES[case] for case in cases)
    properties = f"<properties>{FIGURES}</properties>" if cases else ""
    (tmp_path / "report.xml").write_text(
        f"<testsuites><testsuite>{properties}{body}</testsuite></testsuites>"
    )
    program = tmp_path / "pytest-stub"
    text = STUB.format(
        words=tmp_path / "words",
        before=before,
        write=f'cp {tmp_path / "report.xml"} "$report"',
        after=after or f"exit {code}",
    )
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def options(tmp_path: Path, program: Path, **changes: Any) -> GpuOptions:
    suite = tmp_path / "tests" / "gpu"
    suite.mkdir(parents=True, exist_ok=True)
    return replace(GpuOptions(suite=suite, pytest=(str(program),)), **changes)


def seen(release: str = "0.33.0", device: Any = "cuda") -> Inspection:
    engine = EngineFacts(Version(release), "vllm", versions={"torch": "2.14.0"})
    return Inspection(Platform(device=device, cores=2), engine, "3.12.3", "python", None, "13.0")


def box(
    found: Inspection | None = None, verdict: Cleanliness = Cleanliness.CLEAN, problem: str = ""
) -> Box:
    row = SimpleNamespace(name="NVIDIA H200", used_by_engine=True)
    report: Any = SimpleNamespace(verdict=verdict, rows=[row, row], problems=[problem])
    return Box(lambda python: found or seen(), lambda asked: report)


def whole(tmp_path: Path, **changes: Any) -> Path:
    text = {
        "num_hidden_layers": KIMI_K25.num_hidden_layers,
        "hidden_size": KIMI_K25.hidden_size,
        "vocab_size": 163840,
        "num_attention_heads": 64,
        "max_position_embeddings": 262144,
    }
    folder = tmp_path / "Kimi-K2.5"
    folder.mkdir(exist_ok=True)
    body = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text | changes}
    (folder / "config.json").write_text(json.dumps(body))
    return folder


def ask(tmp_path: Path, program: Path, rung: Rung = Rung.GPU, **changes: Any) -> RungResult:
    place = changes.pop("box", box())
    python = changes.pop("python", Path(sys.executable))
    made = options(tmp_path, program, **changes)
    return climb(rung, recorded("0.33.0"), python, made, box=place)


def words(tmp_path: Path) -> str:
    return (tmp_path / "words").read_text()


# What runs, and what it says.


def test_rung_gpu_runs_the_gpu_tests_in_the_candidates_environment(tmp_path: Path) -> None:
    result = ask(tmp_path, stub(tmp_path, "passed", "passed", "skipped"))
    assert result.status is RungStatus.PASSED, result.reason
    assert result.verdicts == {"native": Verdict.OK}
    assert "2 tests passed, 1 skipped" in result.reason
    asked = words(tmp_path)
    for word in (
        f"{tmp_path}/tests/gpu -m gpu and not slow --hs-require-gpu",
        f"--hs-python {sys.executable}",
        "--hs-capture native",
        "--hs-tensor-parallel-size 1",
    ):
        assert word in asked
    assert "--hs-model" not in asked


def test_rung_full_runs_them_on_the_whole_model_and_all_gpus(tmp_path: Path) -> None:
    model = whole(tmp_path)
    result = ask(tmp_path, stub(tmp_path, "passed"), Rung.FULL, model=model, ranks=8)
    assert result.status is RungStatus.PASSED, result.reason
    assert f"--hs-tensor-parallel-size 8 --hs-model {model}" in words(tmp_path)
    assert result.figures["tensor_parallel_size"] == 8


def test_evidence_calls_a_model_as_every_machine_would(tmp_path: Path) -> None:
    folder = tmp_path / "s6"
    models.make("kimi-k2.5-slice", folder, layers=6, architecture="wrapper")
    result = ask(tmp_path, stub(tmp_path, "passed"), model=folder)
    assert "kimi-k2.5-slice, wrapper, 6 layers, int4" in result.figures["what"]


def test_what_passed_is_evidence_as_the_schema_says(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    result = ask(tmp_path, stub(tmp_path, "passed"))
    body = json.loads(json.dumps(result.to_json()["figures"]))
    jsonschema.validate(body, json.loads(SCHEMA_FILE.read_text()))
    assert body["rung"] == "gpu"
    assert body["pair"] == {
        "vllm": "0.33.0",
        "dist": "vllm",
        "device": "cuda",
        "hardware": "2 x NVIDIA H200",
        "torch": "2.14.0",
        "python": "3.12.3",
    }
    assert body["proofs"][0]["outcome"] == "passed"
    assert body["measured"] == {"test_speed": [{"ratio": 0.97}]}
    assert str(tmp_path) not in json.dumps(body)


@pytest.mark.parametrize("case", ["failed", "error"])
def test_a_test_that_fails_or_a_load_that_does_is_a_regression(case: str, tmp_path: Path) -> None:
    result = ask(tmp_path, stub(tmp_path, "passed", case, code=1))
    assert result.status is RungStatus.FAILED
    assert result.verdicts == {"native": Verdict.REGRESSED}
    assert "1 of 2 tests failed" in result.reason
    first = {"failed": "row 3 is wrong", "error": "engine.load-failed"}[case]
    assert first in result.reason
    assert result.figures["proofs"][0]["outcome"] == "failed"
    # Evidence may be published.
    assert "/tmp" not in json.dumps(result.to_json())


@pytest.mark.parametrize(
    ("cases", "ending", "told"),
    [
        ((), {"code": 5}, "no test was collected"),
        (("skipped",), {"code": 0}, "1 of 1 tests were skipped"),
        (("skipped",), {"code": 1}, "it ended with exit code 1"),
        (("passed",), {"code": 1}, "it ended with exit code 1"),
        (("passed", "dirty"), {"code": 1}, "preflight.dirty: GPU 2 is held"),
        ((), {"code": 4}, "it does not take these options"),
        ((), {"before": "kill -9 $$"}, "it was ended by signal 9"),
        (("passed",), {"after": "kill -9 $$"}, "it was ended by signal 9"),
        ((), {"before": 'echo "<testsuites><testsu" > "$report"; exit 3'}, "error inside pytest"),
    ],
)
def test_a_session_that_tells_of_no_proof_is_unknown_and_never_green(
    cases: tuple[str, ...], ending: dict[str, Any], told: str, tmp_path: Path
) -> None:
    result = ask(tmp_path, stub(tmp_path, *cases, **ending))
    assert result.status is RungStatus.UNKNOWN
    assert result.verdicts == {"native": Verdict.UNKNOWN}
    assert told in result.reason
    assert not result.figures


def test_a_session_that_does_not_end_is_told_to_end_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that its engine ends in order."""
    ended = tmp_path / "ended"
    program = stub(tmp_path, before=f"trap 'echo in-order > {ended}; exit 2' TERM; sleep 9 & wait")
    result = ask(tmp_path, program, limit_s=0.2)
    assert result.status is RungStatus.UNKNOWN
    assert "its time was over" in result.reason
    assert ended.read_text() == "in-order\n"


def test_one_that_does_not_end_even_then_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_session, "GRACE_S", 0.1)
    program = stub(tmp_path, before="trap '' TERM; while :; do sleep 0.1; done")
    assert ask(tmp_path, program, limit_s=0.2).status is RungStatus.UNKNOWN


@pytest.mark.slow
def test_the_real_suite_without_a_gpu_proves_nothing(tmp_path: Path) -> None:
    """With the plugin itself: it must know the options, and its refusals must be told apart."""
    result = ask(tmp_path, Path("unused"), suite=gpu.SUITE, pytest=GpuOptions().pytest)
    assert result.status is RungStatus.UNKNOWN, result.reason
    assert "no usable GPU" in result.reason


# What is not climbed.


def refused(python: Path) -> Any:
    raise NotComparable("engine.facts-failed", expected="a Python", found="none", where="", next="")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"python": None}, "needs --python"),
        ({"box": box(seen(device="cpu"))}, "CPU build"),
        ({"box": box(seen("0.32.0"))}, "is 0.32.0, not 0.33.0"),
        ({"box": Box(refused)}, "engine.facts-failed: none"),
        (
            {"box": box(verdict=Cleanliness.UNKNOWN, problem="there is no NVIDIA GPU")},
            "preflight UNKNOWN: there is no NVIDIA GPU",
        ),
        ({"box": box(verdict=Cleanliness.DIRTY, problem="GPU 2: held")}, "GPU 2: held"),
        ({"suite": Path("/nowhere/tests/gpu")}, "needs a checkout"),
        ({"rung": Rung.FULL}, "needs --model"),
        ({"rung": Rung.FULL, "model": Path("/nowhere")}, "models.missing-folder"),
    ],
)
def test_a_rung_that_cannot_be_climbed_here_is_skipped_with_its_reason_and_runs_nothing(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    result = ask(tmp_path, stub(tmp_path, "passed"), **changes)
    assert result.status is RungStatus.SKIPPED
    assert told in result.reason
    assert not result.verdicts
    assert not (tmp_path / "words").exists()


def test_a_slice_is_no_whole_model(tmp_path: Path) -> None:
    model = whole(tmp_path, num_hidden_layers=6)
    result = ask(tmp_path, stub(tmp_path, "passed"), Rung.FULL, model=model)
    assert result.status is RungStatus.SKIPPED
    assert "6 layers" in result.reason


def test_a_release_without_its_own_capture_is_asked_for_the_patched_one() -> None:
    assert gpu.capture_of(recorded("0.16.0")) == "patched"
    assert gpu.capture_of(recorded("0.33.0")) == "native"


# What it means to the gate.


def gate(**climbed: Any) -> GateResult:
    known = candidate.known("0.32.0")
    asked = candidate.known("0.33.0")
    climbers = {Rung(name): lambda task, one=one: one for name, one in climbed.items()}
    return run_gate(asked, known, rungs=climbers, climbers=climbers)


@pytest.mark.parametrize("rung", [Rung.CPU, Rung.GPU, Rung.FULL])
def test_a_rung_that_ran_and_cannot_tell_leaves_nothing_green(rung: Rung) -> None:
    told = RungResult(rung, RungStatus.UNKNOWN, "killed", 1.0, verdicts={"native": Verdict.UNKNOWN})
    result = gate(**{str(rung): told})
    assert result.generation("native").verdict is Verdict.UNKNOWN
    assert result.verdict is Verdict.UNKNOWN
    assert int(result.verdict.exit_code) == 4


@pytest.mark.parametrize("rung", list(Rung)[1:])
def test_a_rung_that_was_asked_for_and_is_skipped_leaves_nothing_green(rung: Rung) -> None:
    result = gate(**{rung: RungResult(rung, RungStatus.SKIPPED, "no such thing here")})
    assert result.rung is Rung.STATIC
    assert result.verdict is Verdict.UNKNOWN
    said = f"rung {rung} was asked for and not climbed: no such thing here"
    assert all(said in one.reasons for one in result.generations)


def test_rungs_that_nobody_asked_for_or_that_a_failure_ended_are_owed_to_nobody() -> None:
    assert gate().verdict is Verdict.OK_WITH_PATCHES
    failed = RungResult(
        Rung.CPU, RungStatus.FAILED, "rows", 1.0, verdicts={"native": Verdict.REGRESSED}
    )
    result = gate(cpu=failed, gpu=failed)
    assert result.verdict is Verdict.REGRESSED
    assert not any("asked for" in one for one in result.generation("native").reasons)


def test_command_without_gpus_says_why_and_is_not_green() -> None:
    done = CliRunner().invoke(app, ["gate", "0.33.0", "--rungs", "static,gpu,full", "--json"])
    assert done.exit_code == 4, done.output
    said = json.loads(done.stdout)
    rungs = {one["rung"]: one for one in said["rungs"]}
    assert (rungs["gpu"]["status"], rungs["full"]["status"]) == ("skipped", "skipped")
    assert "--python" in rungs["gpu"]["reason"]
    assert "--model" in rungs["full"]["reason"]
    assert said["rung"] == "static"


def test_options_of_the_command_reach_the_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[Rung, GpuOptions] = {}

    def climb(rung: Rung, surface: Any, python: Any, options: GpuOptions) -> RungResult:
        found[rung] = options
        return RungResult(rung, RungStatus.SKIPPED, "told")

    monkeypatch.setattr(gpu, "climb", climb)
    words = ["gate", "0.33.0", "--rungs", "gpu,full", "--slice", "small", "--model", "whole"]
    assert CliRunner().invoke(app, words).exit_code == 4
    assert (found[Rung.GPU].model, found[Rung.GPU].ranks) == (Path("small"), 1)
    assert (found[Rung.FULL].model, found[Rung.FULL].ranks) == (Path("whole"), 8)
    assert CliRunner().invoke(app, [*words, "-tp", "4"]).exit_code == 4
    assert (found[Rung.GPU].ranks, found[Rung.FULL].ranks) == (4, 4)
    assert set(climbers_with()) == set(Rung) - {Rung.STATIC}


def test_what_a_rung_proved_is_kept_where_the_command_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = options(tmp_path, stub(tmp_path, "passed"))
    python = Path(sys.executable)

    def climb_here(rung: Rung, surface: Any, given: Any, chosen: Any) -> RungResult:
        if rung is Rung.FULL:
            return RungResult(rung, RungStatus.SKIPPED, "no model", figures={"proofs": []})
        return climb(rung, surface, python, made, box=box())

    monkeypatch.setattr(gpu, "climb", climb_here)
    folder = tmp_path / "new" / "evidence"
    words = ["gate", "0.33.0", "--rungs", "gpu,full", "--evidence", str(folder)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 4, done.output
    (file,) = folder.iterdir()
    assert file.name.endswith("-gpu-vllm-0.33.0-cuda.json")
    (one,) = read_all(folder)
    assert (one.rung, one.pair.hardware) == (Rung.GPU, "2 x NVIDIA H200")


def test_a_folder_for_evidence_that_cannot_be_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("harness.cli._gate.run_gate", lambda *_, **__: pytest.fail("it ran"))
    words = ["gate", "0.13.0", "--rungs", "cpu", "--evidence", str(tmp_path / "file" / "x")]
    words.append("--json")
    done = CliRunner().invoke(app, words)
    assert json.loads(done.stdout)["error"]["id"] == "evidence.cannot-write"
    assert done.exit_code == 2


def test_no_evidence_is_said_where_no_rung_gives_any(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "evidence"
    done = CliRunner().invoke(app, ["gate", "0.33.0", "--evidence", str(folder)])
    assert done.exit_code == 0
    assert f"no evidence is written to {folder}" in done.stderr
    assert not folder.parent.exists()
