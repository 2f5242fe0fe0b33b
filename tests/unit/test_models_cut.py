"""Cutting a checkpoint to its first layers: the same widths and files, no weight read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import models
from harness.errors import HarnessError
from tests.unit.checkpoints import TINY

PLAN = "harness-weights.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(TINY, tmp_path_factory.mktemp("whole") / "model", experts="int4")


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def test_cut_model_differs_from_its_checkpoint_by_the_number_of_layers_alone(
    whole: Path, tmp_path: Path
) -> None:
    short = models.cut(whole, tmp_path / "short", layers=4)
    wanted = load(whole / "config.json")
    wanted["text_config"]["num_hidden_layers"] = 4
    assert load(short / "config.json") == wanted
    assert models.read(short).num_layers == 4
    assert models.read(short).weights_at_load
    assert models.read(short).quantization == "int4"


def test_cut_model_has_the_tokenizer_and_the_code_and_no_weights(
    whole: Path, tmp_path: Path
) -> None:
    short = models.cut(whole, tmp_path / "short", layers=4)
    left = {path.name for path in whole.iterdir()} - {path.name for path in short.iterdir()}
    assert {name.partition("-")[0].partition(".")[0] for name in left} == {"model", "harness"}
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        assert (short / name).read_bytes() == (whole / name).read_bytes()
    assert not list(short.glob("*.safetensors*"))


@pytest.mark.parametrize(
    "kind", [{"architecture": "plain"}, {"experts": "int4"}, {"dtype": "bfloat16"}]
)
def test_plan_of_a_cut_model_names_the_tensors_of_a_checkpoint_of_so_many_layers(
    tmp_path: Path, kind: dict[str, Any]
) -> None:
    long = models.make(TINY, tmp_path / "long", weights="load", **kind)
    short = models.make(TINY, tmp_path / "short", weights="load", layers=4, **kind)
    found = load(models.cut(long, tmp_path / "cut", layers=4) / PLAN)
    assert found["tensors"] == load(short / PLAN)["tensors"]


@pytest.mark.parametrize("layers", [0, 1, 7])
def test_layers_that_cannot_be_kept_are_refused_and_nothing_is_written(
    whole: Path, tmp_path: Path, layers: int
) -> None:
    with pytest.raises(HarnessError) as caught:
        models.cut(whole, tmp_path / "short", layers=layers)
    assert caught.value.failure.id == "models.bad-option"
    assert "2 to 6" in caught.value.failure.expected
    assert not (tmp_path / "short").exists()


def test_another_quantisation_is_not_comparable(whole: Path, tmp_path: Path) -> None:
    other = models.cut(whole, tmp_path / "other", layers=4)
    config = load(other / "config.json")
    config["text_config"]["quantization_config"] = {"quant_method": "fp8"}
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(HarnessError) as caught:
        models.cut(other, tmp_path / "short", layers=4)
    assert caught.value.failure.id == "models.unknown-family"
    assert "fp8" in caught.value.failure.found


def test_a_folder_that_is_there_is_left_alone(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "mine").touch()
    with pytest.raises(HarnessError) as caught:
        models.cut(whole, tmp_path / "short", layers=4)
    assert caught.value.failure.id == "models.folder-in-use"
    assert [path.name for path in (tmp_path / "short").iterdir()] == ["mine"]
