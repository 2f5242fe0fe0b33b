"""What Kimi-K2.5 needs, by hand: from parameter counts, not from a list of tensors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import models
from harness.errors import NotComparable, Refused, UsageError
from harness.estimate import (
    CARDS,
    EngineSize,
    Model,
    card,
    estimate,
    folder_model,
    most_layers,
    needs,
    profile_model,
    shard_checks,
    tensor_parallel_sizes,
)
from tests.unit.checkpoints import TINY, header

GIB = 2**30
KIMI = profile_model("kimi-k2.5")

# Kimi-K2.5 by hand. One expert has three matrices of 7168 x 2048: half a byte a weight, two
# bytes of scale for 32 of them, and three pairs of int32 that hold the shape.
EXPERT = 3 * (7168 * 2048 // 2 + 7168 * 2048 // 32 * 2 + 8)
EXPERTS = 60 * 384 * EXPERT
# bf16 of one layer's attention: what each rank holds whole, and what is split by heads.
LATENT = 2 * 7168 * (1536 + 512 + 64)
BY_HEAD = 2 * 64 * (1536 * 192 + 512 * 256 + 7168 * 128)
DENSE = 2 * 3 * 7168 * 18432
SHARED = 2 * 3 * 7168 * 2048 * 60
VOCABULARY = 2 * 2 * 163840 * 7168
ROUTER = 60 * (2 * 384 * 7168 + 4 * 384)
NORMS = 2 * (61 * (2 * 7168 + 1536 + 512) + 7168)
ROTARY = 262144 * 64 * 2


def kimi(tensor_parallel_size: int, **changes: object) -> EngineSize:
    return replace(EngineSize(tensor_parallel_size=tensor_parallel_size), **changes)  # type: ignore[arg-type]


def weights(model: Model, tensor_parallel_size: int) -> int:
    return needs(model, tensor_parallel_size).weight_bytes


def by_hand(ranks: int) -> int:
    # The experts' shapes (8 bytes each) are not split.
    shapes = 60 * 384 * 3 * 8
    split = (EXPERTS - shapes) + 61 * BY_HEAD + DENSE + SHARED + VOCABULARY
    assert split % ranks == 0
    return split // ranks + shapes + 61 * LATENT + ROUTER + NORMS + ROTARY


def test_the_released_checkpoint_has_its_published_tensors_and_bytes() -> None:
    assert sum(tensor.each for tensor in KIMI.tensors) == 208_550
    assert round(KIMI.checkpoint_bytes / GIB, 2) == 554.27
    text = replace(KIMI, wrapper=False)
    whole = EXPERTS + 61 * (LATENT + BY_HEAD) + DENSE + SHARED + VOCABULARY + ROUTER + NORMS
    assert text.checkpoint_bytes == whole


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 32])
def test_weights_of_a_device_are_the_ones_counted_by_hand(ranks: int) -> None:
    assert weights(KIMI, ranks) == by_hand(ranks)


def test_eight_ranks_hold_71_gib_each() -> None:
    made = needs("kimi-k2.5", 8)
    assert round(made.weight_bytes / GIB, 1) == 71.0
    experts = made.inside[0]
    assert experts.name.startswith("routed experts")
    assert round(experts.bytes / GIB, 2) == 66.45
    # What a card still held after the story's kill: weights, libraries, part of the rest.
    held = 75_728 * 2**20
    assert made.weight_bytes < held < made.device_bytes


def test_measured_weights_of_slices_on_an_h200_are_met_within_a_thousandth() -> None:
    assert weights(KIMI.with_layers(6), 1) / GIB == pytest.approx(51.03, rel=1e-3)
    assert weights(KIMI.with_layers(3), 1) / GIB == pytest.approx(23.6, rel=2e-3)
    one_layer = weights(KIMI.with_layers(6), 1) - weights(KIMI.with_layers(5), 1)
    assert one_layer / GIB == pytest.approx(9.1, abs=0.05)


@pytest.mark.parametrize(
    ("capture", "tokens"), [("none", 10_050_064), ("native", 1_075_600)], ids=["plain", "native"]
)
def test_measured_cache_of_a_slice_on_an_h200_is_met_within_half_a_percent(
    capture: str, tokens: int
) -> None:
    made = estimate(KIMI.with_layers(6), kimi(1, capture=capture, max_model_len=2048))
    assert made.on(CARDS["h200"]).tokens == pytest.approx(tokens, rel=5e-3)


def test_a_token_takes_latents_of_every_layer_and_four_rows_of_the_stream() -> None:
    pages = needs(KIMI, 8).pages
    assert pages.latent_token == (512 + 64) * 2 == 1152
    assert pages.hidden_token == 4 * 7168 * 2 == 57_344
    assert pages.token == 61 * 1152 + 57_344 == 127_616
    assert needs(KIMI.with_layers(6), 1).pages.token == 57_344 + 6_912
    assert needs(KIMI, 1).pages == pages  # neither is split over ranks


def test_a_page_of_the_cache_is_held_against_four_layers_of_hidden_states() -> None:
    pages = needs(KIMI, 8).pages
    assert pages.latent_page == 16 * 1152 == 18_432
    assert pages.hidden_page == 16 * 57_344
    # One token's rows do not fit a latent page: where groups share a page size it must be four.
    assert math.ceil(57_344 / 18_432) == 4
    assert pages.parted_token == 4 * 18_432 == 73_728
    assert pages.check().state == "note"
    narrow = replace(pages, hidden_token=1 * 7168 * 2)
    assert narrow.check().state == "ok"
    assert narrow.parted_token == 18_432  # 14,336 B in a page of one token
    assert replace(pages, hidden_token=0).parted_token == 0


def test_a_parted_page_holds_a_number_of_tokens_that_divides_its_block() -> None:
    pages = replace(needs(KIMI, 8).pages, hidden_token=3 * 1024)
    # Six rows fit the page; the largest divisor of 16 under that is 4.
    assert 18_432 // 3_072 == 6
    assert pages.parted_token == 18_432 // 4


def test_a_cache_is_dealt_in_whole_blocks() -> None:
    pages = needs(KIMI, 8).pages
    assert pages.tokens(2 * 16 * 127_616 - 1) == 16
    assert pages.tokens(-1) == 0
    assert pages.bytes(16) == 16 * 127_616
    assert pages.bytes(17) == 32 * 127_616


def test_what_lies_beside_the_share_of_vllm_is_counted() -> None:
    one = {term.name: term.bytes for term in needs(KIMI, 1).outside}
    eight = {term.name: term.bytes for term in needs(KIMI, 8).outside}
    assert one["CUDA context"] == eight["CUDA context"] == 524 * 2**20
    assert (one["NCCL buffers"], eight["NCCL buffers"]) == (0, GIB)
    assert one["latent prefill buffer"] == 65_536 * 576 * 2
    few = needs(KIMI, 1, engine=EngineSize(max_model_len=512, max_num_seqs=8)).outside
    assert {term.name: term.bytes for term in few}["latent prefill buffer"] == 4096 * 576 * 2


def test_a_short_step_still_samples_for_every_request() -> None:
    made = needs(KIMI, 8, engine=EngineSize(max_num_batched_tokens=16))
    step = {term.name: term.bytes for term in made.inside}["one step's tensors"]
    assert step >= 256 * 163_840 * 4  # float32 logits of 256 requests


def test_96_gb_cards_fit_eight_ranks_with_some_ten_thousand_tokens() -> None:
    verdict = needs("kimi-k2.5", 8).on(card("96GB"))
    assert verdict.fits
    assert verdict.asked == int(int(94.97 * GIB) * 0.85)
    left = verdict.asked / GIB - by_hand(8) / GIB - 2.19 - 0.4375
    assert verdict.pool / GIB == pytest.approx(left, abs=0.01)
    assert verdict.tokens == pytest.approx(left * GIB / 127_616, rel=2e-3)
    assert 50_000 < verdict.tokens < 65_000


def test_141_gb_cards_fit_eight_ranks_with_over_300_thousand_tokens() -> None:
    verdict = needs("kimi-k2.5", 8).on(card("141GB"))
    assert verdict.fits
    assert verdict.tokens == pytest.approx(380_000, rel=0.01)


def test_80_gb_cards_do_not_fit_and_the_experts_are_named() -> None:
    verdict = needs("kimi-k2.5", 8).on(card("h100"))
    assert not verdict.fits
    assert verdict.tokens == 0
    assert verdict.largest.name.startswith("routed experts")
    assert "does not fit" in verdict.explain()
    assert "66.45 GiB" in verdict.explain()


def test_the_deepest_slice_of_one_h200_has_twelve_layers() -> None:
    engine = EngineSize()
    assert most_layers(KIMI, engine, CARDS["h200"]) == 12
    assert estimate(KIMI.with_layers(12), engine).on(CARDS["h200"]).fits
    assert not estimate(KIMI.with_layers(13), engine).on(CARDS["h200"]).fits
    # 118.8 GiB may be taken; 5.5 are no layers with experts, 9.14 each layer; 3.5 a step.
    assert int((118.8 - 5.5 - 3.5) / 9.14) + 1 == 12 + 1


def test_no_depth_fits_a_card_that_is_too_small() -> None:
    assert most_layers(KIMI, EngineSize(), card("8GiB")) == 0


def test_sharding_of_kimi_at_eight_ranks() -> None:
    found = {check.id: check for check in shard_checks(KIMI, 8)}
    assert list(found) == [
        "shard.heads",
        "shard.kv-heads",
        "shard.vocabulary",
        "shard.dense",
        "shard.shared-experts",
        "shard.experts",
        "shard.expert-group",
        "shard.marlin-inner",
        "shard.marlin-hidden",
    ]
    assert all(check.state == "ok" for check in found.values())
    assert "= 8 a rank" in found["shard.heads"].found
    assert "256 a rank = 8 x 32" in found["shard.expert-group"].found
    assert "20480 a rank" in found["shard.vocabulary"].found


def test_sizes_from_1_to_16_that_divide_kimi_are_the_powers_of_two() -> None:
    assert tensor_parallel_sizes(KIMI, 16) == (1, 2, 4, 8, 16)
    for ranks in range(1, 17):
        failed = [check.id for check in shard_checks(KIMI, ranks) if check.state == "fail"]
        assert bool(failed) == (ranks & (ranks - 1) != 0), ranks


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 12])
def test_a_size_that_does_not_divide_is_refused_with_those_that_do(ranks: int) -> None:
    with pytest.raises(Refused) as caught:
        needs(KIMI, ranks)
    failure = caught.value.failure
    assert failure.id == "estimate.tensor-parallel"
    assert "1, 2, 4, 8, 16, 32" in failure.expected
    assert f"{ranks}: shard.heads" in failure.found


def test_a_rank_whose_experts_are_no_multiple_of_the_group_is_refused() -> None:
    # 2,560 over 64 ranks is 40: heads and experts divide, the groups of 32 do not.
    odd = replace(KIMI, shape=replace(KIMI.shape, moe_intermediate_size=2560))
    with pytest.raises(Refused, match=r"shard\.expert-group"):
        needs(odd, 64)
    assert needs(replace(odd, int4=False), 64).weight_bytes > 0


def test_experts_narrower_than_marlins_tile_are_noted_and_not_refused() -> None:
    tiny = replace(profile_model(TINY), int4=True, dtype="bfloat16")
    states = {check.id: check.state for check in needs(tiny, 8).checks}
    assert states["shard.expert-group"] == "ok"  # 256 / 8 = 32
    assert states["shard.marlin-inner"] == "note"


@pytest.mark.parametrize(
    ("architecture", "dtype", "experts"),
    [
        ("wrapper", "float32", "dense"),
        ("wrapper", "bfloat16", "int4"),
        ("plain", "float32", "int4"),
        ("plain", "bfloat16", "dense"),
    ],
)
def test_a_checkpoints_bytes_are_those_of_its_files(
    tmp_path: Path, architecture: str, dtype: str, experts: str
) -> None:
    folder = tmp_path / "model"
    made = models.make(
        TINY, folder, architecture=architecture, dtype=dtype, experts=experts, layers=2
    )
    model = folder_model(made)
    on_disk = {
        name: entry["data_offsets"][1] - entry["data_offsets"][0]
        for name, entry in header(made).items()
    }
    assert sum(tensor.each for tensor in model.tensors) == len(on_disk)
    assert model.checkpoint_bytes == sum(on_disk.values())
    files = sum(path.stat().st_size for path in made.glob("*.safetensors"))
    assert model.read_bytes == files > model.checkpoint_bytes
    tiny = profile_model(TINY).with_layers(2).shape
    assert replace(model.shape, vision=tiny.vision) == tiny
    assert (model.shape == tiny) == (architecture == "wrapper")


@pytest.mark.parametrize("architecture", ["wrapper", "plain"])
def test_a_slices_bytes_are_those_of_its_plan_and_none_are_read(
    tmp_path: Path, architecture: str
) -> None:
    made = models.make("kimi-k2.5-slice", tmp_path / "slice", architecture=architecture, layers=4)
    model = folder_model(made)
    plan = json.loads((made / "harness-weights.json").read_text())["tensors"]
    width = {"BF16": 2, "F32": 4, "I32": 4}
    planned = sum(
        entry.get("each", 1) * math.prod(entry["shape"]) * width[entry["dtype"]] for entry in plan
    )
    assert replace(model, wrapper=False).checkpoint_bytes == planned
    assert model.read_bytes == 0
    assert model.shape == KIMI.with_layers(4).shape


def test_an_engine_in_another_dtype_holds_that_dtype() -> None:
    tiny = profile_model(TINY)
    half = estimate(tiny, EngineSize(dtype="bfloat16", max_model_len=512))
    full = estimate(tiny, EngineSize(dtype="float32", max_model_len=512))
    assert full.weight_bytes == pytest.approx(2 * half.weight_bytes, rel=0.01)
    assert full.row_bytes == 2 * half.row_bytes == 4 * 4 * 128
    with pytest.raises(UsageError, match=r"estimate\.dtype"):
        estimate(tiny, EngineSize(dtype="float16"))


def test_a_cut_checkpoint_is_no_longer_counted_by_its_files(tmp_path: Path) -> None:
    model = folder_model(models.make(TINY, tmp_path / "model", layers=3))
    cut = model.with_layers(2)
    assert cut.read_bytes == cut.checkpoint_bytes < model.checkpoint_bytes < model.read_bytes


def test_a_vision_tower_is_read_in_either_schema(tmp_path: Path) -> None:
    made = models.make("kimi-k2.5-slice", tmp_path / "model")
    config = json.loads((made / "config.json").read_text())
    vision = config["vision_config"]
    config["vision_config"] = {k: v for k, v in vision.items() if k[:3] not in ("vt_", "ini")}
    assert config["vision_config"] != vision
    (made / "config.json").write_text(json.dumps(config))
    assert models.shape_of(made).vision == KIMI.shape.vision


def test_the_host_holds_a_process_for_each_rank_and_the_rows_in_flight() -> None:
    one, eight = needs(KIMI, 1).host, needs(KIMI, 8).host
    assert eight[0].bytes == 8 * one[0].bytes > 8 * GIB
    rows = {term.name: term.bytes for term in eight}["rows in flight, pinned"]
    assert rows > 0.82e9  # seen in flight on an H200 at 8,192 tokens a step
    assert rows == (2 * 8192 + 8192) * 57_344


def test_a_vision_tower_counts_only_where_it_is_built() -> None:
    without, built = needs(KIMI, 8), needs(KIMI, 8, engine=EngineSize(vision=True))
    assert (built.weight_bytes - without.weight_bytes) / GIB == pytest.approx(0.88, abs=0.01)
    plain = replace(KIMI, wrapper=False)
    assert needs(plain, 8, engine=EngineSize(vision=True)).weight_bytes == without.weight_bytes


def test_patched_capture_needs_no_cache_for_rows_but_room_beside_it() -> None:
    native = needs(KIMI, 8)
    patched = needs(KIMI, 8, engine=EngineSize(capture="patched"))
    assert patched.pages.token == 61 * 1152
    assert patched.pages.check().state == "ok"
    rows = 8192 * 57_344
    outside = {term.name: term.bytes for term in patched.outside}
    assert outside["captured rows of a step"] == 2 * rows
    assert {t.name: t.bytes for t in native.inside}["captured rows of a step"] == rows
    assert patched.on(CARDS["h200"]).tokens > 1.5 * native.on(CARDS["h200"]).tokens


def test_a_longest_request_that_the_cache_cannot_hold_does_not_fit() -> None:
    made = needs(KIMI, 8, engine=EngineSize(max_model_len=131_072))
    verdict = made.on(card("96GB"))
    assert not verdict.fits
    assert "one request of 131072 tokens" in verdict.explain()
    assert made.on(card("141GB")).fits


def test_a_utilisation_that_leaves_no_room_for_the_libraries_does_not_fit() -> None:
    verdict = needs(KIMI, 8, engine=EngineSize(gpu_memory_utilization=0.995)).on(card("96GB"))
    assert not verdict.fits
    assert "beside that share" in verdict.explain()


def test_weights_that_only_just_fit_must_also_fit_while_they_are_repacked() -> None:
    slice6 = KIMI.with_layers(6)
    made = estimate(slice6, EngineSize(gpu_memory_utilization=0.99, max_num_batched_tokens=16))
    # Gate and up of 384 experts at 4 bits, twice for a moment.
    assert made.repack == 384 * 2 * 2048 * 7168 // 2
    assert estimate(replace(slice6, int4=False), EngineSize()).repack == 0
    short = replace(made.engine, max_model_len=16)
    least = estimate(slice6, short)
    outside = sum(term.bytes for term in least.outside)
    assert least.device_bytes == least.weight_bytes + least.repack + outside
    tight = card(f"{(made.weight_bytes + made.repack) / GIB:.3f}GiB")
    assert any("kernel order" in reason for reason in made.on(tight).reasons)


def test_three_numbers_for_who_asks_what_is_needed() -> None:
    made = needs("kimi-k2.5", 8, output=10**9)
    assert made.disk_bytes == 10**9
    assert made.host_bytes == sum(term.bytes for term in made.host)
    assert made.device_bytes == pytest.approx(
        sum(term.bytes for term in (*made.inside, *made.outside)) + 8192 * 127_616
    )
    assert made.page_cache.bytes == KIMI.checkpoint_bytes


def test_facts_folder_and_profile_give_one_answer(tmp_path: Path) -> None:
    made = models.make("kimi-k2.5-slice", tmp_path / "model")
    by_facts = needs(models.read(made), 2)
    assert by_facts == needs(made, 2) == needs(str(made), 2)
    assert by_facts.device_bytes == needs("kimi-k2.5-slice", 2).device_bytes


def test_another_family_is_unknown_and_not_guessed(tmp_path: Path) -> None:
    made = models.make(TINY, tmp_path / "model", layers=2)
    config = made / "config.json"
    config.write_text(config.read_text().replace("q_lora_rank", "other"))
    with pytest.raises(NotComparable, match=r"models\.unknown-family"):
        needs(made, 1)


def test_another_quantisation_is_unknown_and_not_guessed(tmp_path: Path) -> None:
    made = models.make(TINY, tmp_path / "model", layers=2, experts="int4")
    config = made / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"num_bits": 4', '"num_bits": 8'))
    with pytest.raises(NotComparable, match=r"estimate\.unknown-weights"):
        needs(made, 1)
    config.write_text(text.replace('"group_size": 32', '"group_size": 128'))
    with pytest.raises(NotComparable, match="group_size 128"):
        needs(made, 1)


POWERS = st.sampled_from([1, 2, 4, 8, 16])
LAYERS = st.integers(2, 61)


@given(layers=LAYERS, few=POWERS, many=POWERS)
@settings(max_examples=50, deadline=None)
def test_more_ranks_never_need_more_weights_a_device(layers: int, few: int, many: int) -> None:
    few, many = sorted((few, many))
    model = KIMI.with_layers(layers)
    assert weights(model, many) <= weights(model, few)
    assert needs(model, many).host_bytes >= needs(model, few).host_bytes


@given(ranks=POWERS, shallow=LAYERS, deep=LAYERS)
@settings(max_examples=50, deadline=None)
def test_more_layers_never_need_less(ranks: int, shallow: int, deep: int) -> None:
    shallow, deep = sorted((shallow, deep))
    less, more = needs(KIMI.with_layers(shallow), ranks), needs(KIMI.with_layers(deep), ranks)
    assert less.weight_bytes <= more.weight_bytes
    assert less.device_bytes <= more.device_bytes
    for known in CARDS.values():
        assert less.on(known).pool >= more.on(known).pool
        assert less.on(known).fits or not more.on(known).fits


@given(
    tokens=st.integers(1, 65_536),
    longest=st.integers(2, 65_536),
    columns=st.integers(1, 8),
    ranks=POWERS,
)
@settings(max_examples=50, deadline=None)
def test_what_fits_leaves_the_cache_it_promised(
    tokens: int, longest: int, columns: int, ranks: int
) -> None:
    engine = EngineSize(max_num_batched_tokens=tokens, max_model_len=longest, columns=columns)
    made = needs(KIMI, ranks, engine=engine)
    for known in CARDS.values():
        verdict = made.on(known)
        if verdict.fits:
            assert verdict.tokens >= longest
            assert verdict.tokens * made.pages.token <= verdict.pool
            assert made.device_bytes <= known.memory
