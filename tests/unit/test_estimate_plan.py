"""The estimate of a planned engine: the recipe's own settings, and the line of the dry run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import models
from harness.cli import app
from harness.extraction import EngineOptions
from harness.extraction.needs import engine_needs, memory_line
from harness.extraction.options import CaptureChoice
from harness.extraction.plan import EnginePlan, plan_engine
from tests.unit.checkpoints import TINY
from tests.unit.interpreters import StandIn


@pytest.fixture(scope="module")
def slice_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make("kimi-k2.5-slice", tmp_path_factory.mktemp("slice") / "model")


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    box = StandIn(tmp_path / "python", device="cuda")
    facts = json.loads((box.folder / "facts.json").read_text())
    (box.folder / "facts.json").write_text(json.dumps({**facts, "gpus": 8}))
    return box


def planned(
    model: Path, stand_in: StandIn, *, capture: CaptureChoice = "native", ranks: int = 2
) -> EnginePlan:
    options = EngineOptions(
        model=model,
        layers="2,3,5",
        capture=capture,
        tensor_parallel_size=ranks,
        max_model_len=512,
        max_num_batched_tokens=4096,
        gpu_memory_utilization=0.7,
        python=stand_in.python,
    )
    return plan_engine(options, longest_prompt=511, spool=stand_in.folder / "spool")


@pytest.mark.parametrize("capture", ["native", "patched"])
def test_an_estimate_takes_the_settings_of_the_recipe(
    slice_folder: Path, stand_in: StandIn, capture: CaptureChoice
) -> None:
    plan = planned(slice_folder, stand_in, capture=capture)
    made = engine_needs(plan, output=77)
    arguments = plan.recipe.engine_args
    engine = made.engine
    assert engine.capture == capture
    assert (engine.columns, engine.written) == (4, 4)
    assert engine.tensor_parallel_size == arguments["tensor_parallel_size"] == 2
    assert engine.max_model_len == arguments["max_model_len"] == 512
    assert engine.max_num_batched_tokens == arguments["max_num_batched_tokens"] == 4096
    assert engine.max_num_seqs == arguments["max_num_seqs"]
    assert engine.gpu_memory_utilization == 0.7
    assert (made.disk_bytes, made.model.read_bytes) == (77, 0)


def test_an_engine_without_capture_needs_no_room_for_rows(
    slice_folder: Path, stand_in: StandIn
) -> None:
    made = engine_needs(planned(slice_folder, stand_in, capture="none"))
    assert made.pages.hidden_token == made.row_bytes == 0
    assert not [term for term in (*made.inside, *made.outside) if "captured" in term.name]
    assert {term.name: term.bytes for term in made.host}["rows in flight, pinned"] == 0


def test_the_dry_run_says_what_each_gpu_needs(
    slice_folder: Path, stand_in: StandIn, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "input_ids": [1, 2, 3]}\n')
    arguments = [
        *("extract", "--model", str(slice_folder), "--prompts", str(prompts), "-tp", "4"),
        *("--layers", "2,3,5", "--out", str(tmp_path / "out"), "--python", str(stand_in.python)),
        "--dry-run",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    line = result.stdout.splitlines()[-1]
    assert line.startswith("GPU memory: at least ")
    assert "on each of 4; fits: H100 80 GB, RTX PRO" in line


def test_a_model_of_an_unknown_family_is_planned_without_an_estimate(
    stand_in: StandIn, tmp_path: Path
) -> None:
    model = models.make(TINY, tmp_path / "model", layers=6, dtype="bfloat16")
    config = model / "config.json"
    config.write_text(config.read_text().replace("first_k_dense_replace", "other"))
    line = memory_line(planned(model, stand_in))
    assert line.startswith("GPU memory: unknown; expected a decoder of DeepSeek-V3's form")
    assert "first_k_dense_replace" in line
