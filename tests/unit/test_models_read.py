"""Reading a checkpoint's configuration: facts, and one clear error for each fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import models
from harness.errors import UsageError
from tests.unit.checkpoints import TINY

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "vocab_size": 128,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    "kv_lora_rank": 32,
}


def _write(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _failure(path: Path) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        models.read(path)
    failure = caught.value.failure
    assert str(path) in failure.where
    assert failure.expected
    assert failure.next
    return failure.id, failure.found


def test_facts_of_the_made_models(tmp_path: Path) -> None:
    wrapper = models.read(models.make(TINY, tmp_path / "wrapper", experts="int4", layers=3))
    assert wrapper == models.ModelFacts(
        path=tmp_path / "wrapper",
        architecture="KimiK25ForConditionalGeneration",
        is_wrapper=True,
        num_layers=3,
        hidden_size=128,
        vocab_size=512,
        dtype="float32",
        num_heads=8,
        is_mla=True,
        quantization="int4",
        max_position_embeddings=8192,
        media_placeholder_id=277,
        tokenizer_present=True,
    )
    plain = models.read(
        models.make(TINY, tmp_path / "plain", architecture="plain", dtype="bfloat16", layers=3)
    )
    assert (plain.architecture, plain.is_wrapper) == ("DeepseekV3ForCausalLM", False)
    assert (plain.dtype, plain.quantization) == ("bfloat16", None)
    assert plain.media_placeholder_id is None


def test_missing_folder(tmp_path: Path) -> None:
    assert _failure(tmp_path / "nowhere") == ("models.missing-folder", "nothing there")


def test_file_instead_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    assert _failure(tmp_path / "model") == ("models.missing-folder", "a file")


def test_folder_without_config(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    assert _failure(tmp_path) == ("models.no-config", "notes.txt")


def test_config_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": [')
    id_, found = _failure(tmp_path)
    assert id_ == "models.broken-config"
    assert "line 1" in found


def test_config_without_a_bottom(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert _failure(tmp_path)[0] == "models.broken-config"


def test_config_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    assert _failure(tmp_path)[0] == "models.broken-config"


def test_config_that_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1, 2]")
    assert _failure(tmp_path) == ("models.broken-config", "a JSON list")


@pytest.mark.parametrize("layers", [..., 0, -3, "six", True, None])
def test_config_without_layers(layers: Any, tmp_path: Path) -> None:
    id_, found = _failure(_write(tmp_path, num_hidden_layers=layers))
    assert id_ == "models.config-without-layers"
    assert found == ("no such key" if layers is ... else str({"num_hidden_layers": layers}))


def test_wrapper_whose_text_config_has_no_layers(tmp_path: Path) -> None:
    # The outer number belongs to nobody: the vision tower has one of its own.
    _write(tmp_path, text_config={**CONFIG, "num_hidden_layers": None}, num_hidden_layers=9)
    assert _failure(tmp_path)[0] == "models.config-without-layers"


@pytest.mark.parametrize(
    "key", ["hidden_size", "vocab_size", "num_attention_heads", "max_position_embeddings"]
)
@pytest.mark.parametrize("value", [..., 0, "many"])
def test_config_without_a_size(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        models.read(_write(tmp_path, **{key: value}))
    assert caught.value.failure.id == "models.config-incomplete"
    assert key in caught.value.failure.expected


@pytest.mark.parametrize("value", [..., [], "DeepseekV3ForCausalLM", [None]])
def test_config_without_architecture(value: Any, tmp_path: Path) -> None:
    assert _failure(_write(tmp_path, architectures=value))[0] == "models.config-incomplete"


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({}, "float32"),
    ],
)
def test_dtype_under_either_key(changes: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    assert models.read(_write(tmp_path, **changes)).dtype == dtype


def test_outer_dtype_of_a_wrapper_wins_as_in_vllm(tmp_path: Path) -> None:
    text = {**CONFIG, "dtype": "float32"}
    assert models.read(_write(tmp_path, text_config=text, dtype="bfloat16")).dtype == "bfloat16"
    assert models.read(_write(tmp_path, text_config=text)).dtype == "float32"


@pytest.mark.parametrize(
    ("block", "name"),
    [
        (None, None),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}},
            },
            "compressed-tensors",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float"}}},
            },
            "compressed-tensors",
        ),
        ({}, None),
        ({"bits": 4}, "unknown"),
    ],
)
def test_quantisation_by_name(block: Any, name: str | None, tmp_path: Path) -> None:
    assert models.read(_write(tmp_path, quantization_config=block)).quantization == name


def test_wrapper_quantised_at_the_outer_level(tmp_path: Path) -> None:
    _write(tmp_path, text_config=dict(CONFIG), quantization_config={"quant_method": "fp8"})
    assert models.read(tmp_path).quantization == "fp8"


def test_placeholder_of_kimi_is_not_taken_for_another_key(tmp_path: Path) -> None:
    _write(tmp_path, text_config=dict(CONFIG), media_placeholder_token_id=7, image_token_id=163605)
    assert models.read(tmp_path).media_placeholder_id == 7


def test_attention_without_a_latent_is_not_mla(tmp_path: Path) -> None:
    assert models.read(_write(tmp_path)).is_mla
    assert not models.read(_write(tmp_path, kv_lora_rank=None)).is_mla


def test_missing_tokenizer_is_told(tmp_path: Path) -> None:
    assert not models.read(_write(tmp_path)).tokenizer_present
    (tmp_path / "tiktoken.model").write_text("")
    assert models.read(tmp_path).tokenizer_present
