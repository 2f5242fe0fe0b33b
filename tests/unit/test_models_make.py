"""Made models: complete, byte-equal, all or nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from safetensors import safe_open

from harness import models
from harness.errors import Refused, UsageError
from harness.models import _make, _safetensors
from harness.models._int4 import GROUP_SIZE
from harness.models._kimi import KIMI_K25, KIMI_K25_TINY
from harness.models._tensors import Kind, packed_shapes, text_tensors, vision_tensors
from tests.unit.checkpoints import TINY, contents, header, shards, tensors

# Of the shards of kimi-k2.5-tiny, seed 0, wrapper, dense, float32, in order.
RECORDED = "84d850d46bfa96b18ad4c7971297c64cf29b5f83942d0cea5963bcee28bfe523"


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(TINY, tmp_path_factory.mktemp("made") / "wrapper")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make(TINY, tmp_path_factory.mktemp("made") / "plain", architecture="plain")


def test_weights_of_seed_0_have_the_recorded_checksum(wrapper: Path) -> None:
    state = blake3()
    for shard in shards(wrapper):
        state.update(shard.read_bytes())
    assert state.hexdigest() == RECORDED


def test_same_arguments_give_the_same_bytes(wrapper: Path, tmp_path: Path) -> None:
    again = models.make(TINY, tmp_path / "again")
    assert contents(again) == contents(wrapper)


def test_another_seed_changes_every_tensor_and_the_fingerprint(plain: Path, tmp_path: Path) -> None:
    other = models.make(TINY, tmp_path / "other", seed=1, architecture="plain")
    left, right = tensors(plain), tensors(other)
    assert [name for name in left if np.array_equal(left[name], right[name])] == []
    assert models.fingerprint(other) != models.fingerprint(plain)


def test_wrapper_holds_the_plain_model_under_its_prefix(wrapper: Path, plain: Path) -> None:
    inside = {
        name.removeprefix("language_model."): array
        for name, array in tensors(wrapper).items()
        if name.startswith("language_model.")
    }
    outside = tensors(plain)
    assert inside.keys() == outside.keys()
    assert all(np.array_equal(inside[name], outside[name]) for name in outside)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (wrapper, plain)]
    assert configs[0]["text_config"] == configs[1]


def test_bfloat16_checkpoint_holds_the_float32_numbers(plain: Path, tmp_path: Path) -> None:
    half = models.make(TINY, tmp_path / "half", architecture="plain", dtype="bfloat16")
    single, rounded = tensors(plain), tensors(half)
    assert single.keys() == rounded.keys()
    assert all(np.array_equal(single[name], rounded[name]) for name in single)
    dtypes = {name: entry["dtype"] for name, entry in header(half).items()}
    assert {d for n, d in dtypes.items() if not n.endswith("correction_bias")} == {"BF16"}
    assert {d for n, d in dtypes.items() if n.endswith("correction_bias")} == {"F32"}


@pytest.mark.parametrize("architecture", ["wrapper", "plain"])
@pytest.mark.parametrize("experts", ["dense", "int4", "int4-twin"])
def test_checkpoint_has_exactly_the_tensors_its_config_asks_for(
    architecture: str, experts: str, tmp_path: Path
) -> None:
    folder = models.make(TINY, tmp_path / "model", architecture=architecture, experts=experts)
    config = json.loads((folder / "config.json").read_text())
    expected = _expected(config, packed=experts == "int4")
    found = {name: tuple(entry["shape"]) for name, entry in header(folder).items()}
    if architecture == "wrapper":
        vision = {name for name in found if name.startswith(("vision_tower.", "mm_projector."))}
        assert len(vision) == 35
        found = {
            name.removeprefix("language_model."): shape
            for name, shape in found.items()
            if name not in vision
        }
    assert found == expected


def _expected(config: dict[str, Any], *, packed: bool) -> dict[str, tuple[int, ...]]:
    """Derive the text model's tensors from ``config.json``, apart from the code under test."""
    c = config.get("text_config", config)
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    out: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c["vocab_size"], hidden),
        "lm_head.weight": (c["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }

    def mlp(prefix: str, inner: int, *, quantised: bool = False) -> None:
        for name, shape in {
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }.items():
            if quantised:
                rows, columns = shape
                out[f"{prefix}{name}.weight_packed"] = (rows, columns // 8)
                out[f"{prefix}{name}.weight_scale"] = (rows, columns // 32)
                out[f"{prefix}{name}.weight_shape"] = (2,)
            else:
                out[f"{prefix}{name}.weight"] = shape

    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        attention = f"{at}self_attn."
        out |= {
            f"{at}input_layernorm.weight": (hidden,),
            f"{at}post_attention_layernorm.weight": (hidden,),
            f"{attention}q_a_proj.weight": (c["q_lora_rank"], hidden),
            f"{attention}q_a_layernorm.weight": (c["q_lora_rank"],),
            f"{attention}q_b_proj.weight": (heads * (nope + rope), c["q_lora_rank"]),
            f"{attention}kv_a_proj_with_mqa.weight": (c["kv_lora_rank"] + rope, hidden),
            f"{attention}kv_a_layernorm.weight": (c["kv_lora_rank"],),
            f"{attention}kv_b_proj.weight": (heads * (nope + value), c["kv_lora_rank"]),
            f"{attention}o_proj.weight": (hidden, heads * value),
        }
        if layer < c["first_k_dense_replace"]:
            mlp(f"{at}mlp.", c["intermediate_size"])
            continue
        out[f"{at}mlp.gate.weight"] = (c["n_routed_experts"], hidden)
        out[f"{at}mlp.gate.e_score_correction_bias"] = (c["n_routed_experts"],)
        inner = c["moe_intermediate_size"]
        for expert in range(c["n_routed_experts"]):
            mlp(f"{at}mlp.experts.{expert}.", inner, quantised=packed)
        mlp(f"{at}mlp.shared_experts.", inner * c["n_shared_experts"])
    return out


def test_full_size_facts_count_the_released_checkpoint() -> None:
    # The table of the released files: 208,550 tensors, 554.27 GiB.
    width = {"I32": 4, "BF16": 2, "F32": 4}
    stored: list[tuple[str, tuple[int, ...]]] = []
    for spec in [*text_tensors(KIMI_K25), *vision_tensors(KIMI_K25)]:
        if spec.kind is Kind.EXPERT:
            stored += packed_shapes(spec).values()
        else:
            stored.append(("F32" if spec.kind is Kind.CORRECTION else "BF16", spec.shape))
    assert len(stored) == 208_550
    assert sum(math.prod(shape) for _, shape in stored) == 170_738_182_128
    size = sum(width[dtype] * math.prod(shape) for dtype, shape in stored)
    assert f"{size / 2**30:.2f}" == "554.27"


def test_tiny_sizes_divide_over_eight_ranks_and_int4_groups() -> None:
    tiny = KIMI_K25_TINY
    for size in (
        tiny.hidden_size,
        tiny.vocab_size,
        tiny.intermediate_size,
        tiny.num_attention_heads,
        tiny.n_routed_experts,
        tiny.q_lora_rank,
    ):
        assert size % 8 == 0
    assert tiny.moe_intermediate_size % (8 * GROUP_SIZE) == 0
    assert (tiny.kv_lora_rank, tiny.qk_rope_head_dim) == (512, 64)
    assert (tiny.qk_nope_head_dim, tiny.v_head_dim) == (128, 128)
    assert tiny.media_placeholder_id < tiny.vocab_size


def test_safetensors_library_reads_what_was_written(plain: Path) -> None:
    ours = tensors(plain)
    seen = 0
    for shard in shards(plain):
        with safe_open(shard, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                assert np.array_equal(file.get_tensor(name), ours[name])
                seen += 1
    assert seen == len(ours)


def test_weights_are_spread_and_unlike_between_layers(plain: Path) -> None:
    arrays = tensors(plain)
    assert all(np.isfinite(array).all() for array in arrays.values())
    for suffix in ("self_attn.q_a_proj.weight", "input_layernorm.weight"):
        layers = [arrays[f"model.layers.{i}.{suffix}"] for i in range(6)]
        for i in range(6):
            for j in range(i):
                assert np.abs(layers[i] - layers[j]).mean() > 0.3 * layers[i].std()


def test_making_the_same_model_again_touches_nothing(tmp_path: Path) -> None:
    folder = models.make(TINY, tmp_path / "model", architecture="plain")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert models.make(TINY, folder, architecture="plain") == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"architecture": "wrapper"}, {"experts": "int4"}, {"dtype": "bfloat16"}]
)
def test_folder_of_another_model_is_refused_and_kept(other: dict[str, Any], tmp_path: Path) -> None:
    options: dict[str, Any] = {"architecture": "plain"}
    folder = models.make(TINY, tmp_path / "model", **options)
    before = contents(folder)
    with pytest.raises(Refused) as caught:
        models.make(TINY, folder, **{**options, **other})
    assert caught.value.failure.id == "models.folder-in-use"
    assert next(iter(other)) in caught.value.failure.found
    assert contents(folder) == before


def test_folder_with_foreign_files_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(Refused) as caught:
        models.make(TINY, tmp_path)
    assert caught.value.failure.id == "models.folder-in-use"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(Refused, match=r"models\.folder-in-use"):
        models.make(TINY, tmp_path / "model")
    assert (tmp_path / "model").read_text() == "mine"


def test_damaged_model_is_not_taken_for_the_model(tmp_path: Path) -> None:
    folder = models.make(TINY, tmp_path / "model", architecture="plain")
    shards(folder)[1].unlink()
    with pytest.raises(Refused, match="missing or of another size"):
        models.make(TINY, folder, architecture="plain")


def test_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    folder = models.make(TINY, tmp_path / "model", architecture="plain")
    assert models.check_shards(folder).startswith("2 shards, 205 tensors")


def test_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def full(path: Path, *_: object) -> int:
        path.write_bytes(b"half")
        written.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_safetensors, "write", full)
    with pytest.raises(Refused) as caught:
        models.make(TINY, tmp_path / "model")
    assert caught.value.failure.id == "models.cannot-write"
    assert "No space left" in caught.value.failure.found
    assert written, "the fault was never met"
    assert list(tmp_path.iterdir()) == []


def test_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_make, "write_weights", interrupt)
    with pytest.raises(KeyboardInterrupt):
        models.make(TINY, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_slice_has_kimis_width_and_no_weights(tmp_path: Path) -> None:
    folder = models.make("kimi-k2.5-slice", tmp_path / "slice", layers=3)
    facts = models.read(folder)
    assert (facts.num_layers, facts.hidden_size, facts.vocab_size) == (3, 7168, 163840)
    assert (facts.quantization, facts.dtype, facts.num_heads) == ("int4", "bfloat16", 64)
    assert facts.media_placeholder_id == 163605
    assert shards(folder) == []


def test_number_of_layers_can_be_chosen_and_layers_keep_their_weights(
    plain: Path, tmp_path: Path
) -> None:
    short = models.make(TINY, tmp_path / "short", architecture="plain", layers=3)
    whole, part = tensors(plain), tensors(short)
    assert models.read(short).num_layers == 3
    assert all(np.array_equal(whole[name], part[name]) for name in part)


@pytest.mark.parametrize(
    ("profile", "options", "id_"),
    [
        ("kimi-k9", {}, "models.unknown-profile"),
        ("kimi-k2.5", {}, "models.facts-only"),
        (TINY, {"architecture": "llama"}, "models.bad-option"),
        (TINY, {"experts": "int8"}, "models.bad-option"),
        (TINY, {"dtype": "float16"}, "models.bad-option"),
        (TINY, {"layers": 1}, "models.bad-option"),
    ],
)
def test_bad_option_is_named_before_anything_is_written(
    profile: str, options: dict[str, Any], id_: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        models.make(profile, tmp_path / "model", **options)
    assert caught.value.failure.id == id_
    assert list(tmp_path.iterdir()) == []
