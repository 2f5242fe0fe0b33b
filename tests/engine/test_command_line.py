"""The commands as a user runs them: a demo, its dataset verified, damaged, resumed, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
HARNESS = [sys.executable, "-m", "harness"]


def run(*args: str | Path, timeout: float = 400.0) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [*HARNESS, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    assert len(lines) <= 1, f"stdout must hold one JSON object:\n{done.stdout}"
    return done.returncode, json.loads(lines[0]) if lines else {}, done.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("demo")
    code, result, errors = run("demo", "--out", folder / "demo", "--json")
    assert code == 0, errors
    return folder / "demo", result


def test_demo_verifies_every_sample(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, result = demo
    assert result["verified"] is True
    assert result["samples"] == 13
    assert result["max_rel_err"] <= 1e-5
    assert result["out"] == str(folder / "dataset")
    assert result["extraction"]["checked"] >= 1


def test_verify_accepts_the_demo_and_names_one_flipped_bit(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    out = demo[0] / "dataset"
    code, report, _ = run("verify", out, "--json")
    assert (code, report["ok"], report["checked"], report["bad"]) == (0, True, 13, [])
    target = out / "hs_5.safetensors"
    good = target.read_bytes()
    spoiled = bytearray(good)
    spoiled[-2000] ^= 1
    target.write_bytes(spoiled)
    try:
        code, report, _ = run("verify", out, "--json")
        assert code == 1
        assert report["ok"] is False
        assert "checksum" in {bad["check"] for bad in report["bad"]}
    finally:
        target.write_bytes(good)


def extract(folder: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    prompts = Path(__file__).parents[2] / "fixtures/prompts/mixed.jsonl"
    args = ["--model", folder / "model", "--prompts", prompts, "--out", folder / "dataset"]
    return run("extract", *args, "--dtype", "float32", "--json", *more)


def test_a_second_run_resumes_without_an_engine_and_another_run_is_refused(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    folder, _ = demo
    code, result, errors = extract(folder, "--layers", "1,3,4,6")
    assert code == 0, errors
    assert (result["samples"], result["kept"], result["load_seconds"]) == (13, 13, 0.0)
    code, body, _ = extract(folder, "--layers", "1,2,4,6")
    assert code == 3
    assert body["error"]["id"] == "dataset.other-run"
    assert "depths" in body["error"]["found"]


def test_the_dataset_is_what_speculators_trains_on(demo: tuple[Path, dict[str, Any]]) -> None:
    pytest.importorskip("speculators", reason="needs speculators (make gen2)")
    out = demo[0] / "dataset"
    script = """
import json, sys
from pathlib import Path
from hs_connectors import FileTransfer
from speculators.train.data import ArrowDataset

out = Path(sys.argv[1])
data = ArrowDataset(
    max_len=4096, datapath=out / "prompts_arrow", transfer=FileTransfer(out), on_missing="raise"
)
rows = [data[i] for i in range(len(data))]
print(json.dumps([[list(r["hidden_states"].shape), len(r["input_ids"])] for r in rows]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shapes = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(shapes) == 13
    assert all(shape[-1] == 3 * 128 and shape[0] == tokens for shape, tokens in shapes)
