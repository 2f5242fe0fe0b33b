"""Contracts of depth, its dialects, presets and plans."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError, NotComparable, Refused, UsageError
from harness.layers import (
    DIALECTS,
    PRESETS,
    LayerPlan,
    check_capture,
    resolve,
    to_depth,
    to_dialect,
    usual,
)

ONE_BASED = ("speculators-gen1", "sglang", "modelopt")


@contextmanager
def fails(
    id: str, error: type[HarnessError] = UsageError
) -> Iterator[pytest.ExceptionInfo[HarnessError]]:
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.failure.id == id
    assert caught.value.failure.next


# --- dialects


@pytest.mark.parametrize("num_layers", [1, 6, 61])
def test_vllm_id_is_the_depth_up_to_the_stream_before_the_final_norm(num_layers: int) -> None:
    assert [to_depth(k, "vllm", num_layers) for k in range(num_layers + 1)] == list(
        range(num_layers + 1)
    )


@pytest.mark.parametrize("dialect", ONE_BASED)
def test_output_of_layer_i_is_depth_i_plus_one(dialect: str) -> None:
    assert [to_depth(i, dialect, 6) for i in range(6)] == [1, 2, 3, 4, 5, 6]


def test_last_layer_is_named_by_vllm_id_l_and_by_gen1_id_l_minus_one() -> None:
    assert to_depth(61, "vllm", 61) == to_depth(60, "speculators-gen1", 61) == 61


def test_hf_id_l_is_refused_because_it_has_passed_the_final_norm() -> None:
    assert to_depth(5, "hf", 6) == 5
    with fails("layers.hf-post-norm") as caught:
        resolve([1, 6], "hf", 6)
    assert "final norm" in caught.value.failure.found


@pytest.mark.parametrize("dialect", ONE_BASED)
def test_depth_zero_has_no_name_in_dialects_that_count_outputs(dialect: str) -> None:
    with fails("layers.not-in-dialect"):
        to_dialect(0, dialect, 6)


def test_depth_l_has_no_name_in_hf() -> None:
    with fails("layers.not-in-dialect"):
        to_dialect(6, "hf", 6)


@given(dialect=st.sampled_from(sorted(DIALECTS)), num_layers=st.integers(1, 200), data=st.data())
def test_every_id_survives_the_round_trip_through_depth(
    dialect: str, num_layers: int, data: st.DataObject
) -> None:
    layer_id = data.draw(st.sampled_from(DIALECTS[dialect].ids(num_layers)))
    depth = to_depth(layer_id, dialect, num_layers)
    assert 0 <= depth <= num_layers
    assert to_dialect(depth, dialect, num_layers) == layer_id


def test_unknown_dialect_names_the_known_ones() -> None:
    with fails("layers.unknown-dialect") as caught:
        resolve("1,2", "tensorrt", 6)
    assert "speculators-gen1" in caught.value.failure.expected


# --- presets


def test_presets_for_kimi_k25_are_the_published_depths() -> None:
    depths = {name: resolve(name, "vllm", 61).depths for name in PRESETS}
    assert depths == {
        "eagle3": (2, 30, 58, 61),
        "speculators-0.9": (2, 30, 58, 61),
        "speculators-0.3": (3, 31, 59, 61),
    }


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_a_preset_means_the_same_depths_whatever_the_dialect(dialect: str) -> None:
    plan = resolve("speculators-0.3", dialect, 61)
    assert (plan.dialect, plan.caller_ids, plan.preset) == (
        "speculators-gen1",
        (2, 30, 58, 60),
        "speculators-0.3",
    )


@given(name=st.sampled_from(sorted(PRESETS)), num_layers=st.integers(7, 300))
def test_presets_never_collide_from_seven_layers_on(name: str, num_layers: int) -> None:
    depths = resolve(name, "vllm", num_layers).depths
    assert len(set(depths)) == 4
    assert depths[-1] == num_layers
    assert list(depths) == sorted(depths)


@pytest.mark.parametrize("num_layers", range(1, 7))
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_preset_on_a_model_too_shallow_for_it_says_so(name: str, num_layers: int) -> None:
    with fails("layers.preset-collides") as caught:
        resolve(name, "vllm", num_layers)
    assert f"{num_layers} layers" in caught.value.failure.found


def test_unknown_preset_names_the_known_ones() -> None:
    with fails("layers.unknown-preset") as caught:
        resolve("eagle4", "vllm", 61)
    assert "speculators-0.3" in caught.value.failure.expected


# --- rules for ids


def test_unsorted_ids_keep_the_callers_order_and_the_engine_gets_them_sorted() -> None:
    plan = resolve("5,1,3", "vllm", 6)
    assert plan.depths == (5, 1, 3, 6)
    assert plan.engine_depths == (1, 3, 5, 6)
    assert plan.columns == (2, 0, 1, 3)


@pytest.mark.parametrize("ids", ["2,2", "6,1,6", "1,3,1"])
def test_duplicate_id_is_refused_and_named(ids: str) -> None:
    with fails("layers.duplicate"):
        resolve(ids, "vllm", 6, layout="raw")


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_negative_id_is_refused_and_never_counts_from_the_end(dialect: str) -> None:
    with fails("layers.negative"):
        resolve("1,-1", dialect, 6)


@pytest.mark.parametrize(
    ("dialect", "bad", "span"),
    [
        ("vllm", 7, "0 to 6"),
        ("hf", 7, "0 to 5"),
        ("speculators-gen1", 6, "0 to 5"),
        ("sglang", 6, "0 to 5"),
        ("modelopt", 6, "0 to 5"),
    ],
)
def test_out_of_range_id_names_the_range_in_the_callers_dialect(
    dialect: str, bad: int, span: str
) -> None:
    with fails("layers.out-of-range") as caught:
        resolve([1, bad], dialect, 6)
    assert span in caught.value.failure.expected
    assert dialect in caught.value.failure.expected


@pytest.mark.parametrize("ids", ["1,x", "1,2.0", "1,", "1,,2", "0x1,2", "1_0,2", "[1,2]", "1;2"])
def test_non_integer_text_is_refused(ids: str) -> None:
    with fails("layers.not-an-integer"):
        resolve(ids, "vllm", 6)


@pytest.mark.parametrize("bad", [1.0, True, None, "1.5"])
def test_non_integer_value_is_refused(bad: object) -> None:
    with fails("layers.not-an-integer"):
        resolve([2, bad], "vllm", 6)  # type: ignore[list-item]


@pytest.mark.parametrize("ids", ["", "  ", [], ()])
def test_empty_list_is_refused(ids: str | list[int]) -> None:
    with fails("layers.empty"):
        resolve(ids, "vllm", 6)


def test_model_without_layers_is_refused() -> None:
    with fails("layers.no-layers"):
        resolve("1", "vllm", 0)


# --- layouts


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_training_layout_adds_depth_l_when_the_caller_left_it_out(dialect: str) -> None:
    plan = resolve([1, 3], dialect, 6)
    assert plan.depths[-1] == 6
    assert len(plan.depths) == 3
    assert plan.caller_ids == (1, 3)


def test_training_layout_does_not_repeat_depth_l() -> None:
    assert resolve("1,3,6", "vllm", 6).depths == (1, 3, 6)


def test_training_layout_refuses_depth_l_before_another_column() -> None:
    with fails("layers.last-not-last") as caught:
        resolve("6,3,1", "vllm", 6)
    assert "raw" in caught.value.failure.next
    assert resolve("6,3,1", "vllm", 6, layout="raw").depths == (6, 3, 1)


def test_training_layout_needs_an_auxiliary_depth() -> None:
    with fails("layers.no-auxiliary"):
        resolve("6", "vllm", 6)


def test_raw_layout_writes_only_what_was_asked_but_the_engine_still_captures_l() -> None:
    plan = resolve("2,0", "vllm", 6, layout="raw")
    assert plan.depths == (2, 0)
    assert plan.engine_depths == (0, 2, 6)
    assert "depth 6 is captured for the canary" in plan.explain()


def test_unknown_layout_is_refused() -> None:
    with fails("layers.unknown-layout"):
        resolve("1", "vllm", 6, layout="eagle")


@given(
    num_layers=st.integers(2, 100),
    layout=st.sampled_from(["training", "raw"]),
    dialect=st.sampled_from(sorted(DIALECTS)),
    data=st.data(),
)
def test_columns_pick_exactly_the_callers_depths_in_the_callers_order(
    num_layers: int, layout: str, dialect: str, data: st.DataObject
) -> None:
    allowed = list(DIALECTS[dialect].ids(num_layers))
    if layout == "training":
        allowed = [i for i in allowed if to_depth(i, dialect, num_layers) != num_layers]
    ids = data.draw(st.lists(st.sampled_from(allowed), min_size=1, max_size=8, unique=True))
    plan = resolve(ids, dialect, num_layers, layout=layout)

    assert list(plan.engine_depths) == sorted(set(plan.engine_depths))
    assert plan.engine_depths[-1] == num_layers
    assert tuple(plan.engine_depths[column] for column in plan.columns) == plan.depths
    assert len(set(plan.columns)) == len(plan.columns)
    assert set(plan.engine_depths) <= {*plan.depths, num_layers}
    wanted = [to_depth(i, dialect, num_layers) for i in ids]
    assert list(plan.depths) == wanted + ([num_layers] if layout == "training" else [])
    assert resolve(",".join(map(str, ids)), dialect, num_layers, layout=layout) == plan


def test_plan_survives_json_and_explains_every_column() -> None:
    plan = resolve("4,1", "speculators-gen1", 6)
    assert json.loads(json.dumps(plan.to_json())) == {
        "num_layers": 6,
        "dialect": "speculators-gen1",
        "layout": "training",
        "preset": None,
        "caller_ids": [4, 1],
        "depths": [5, 2, 6],
        "engine_depths": [2, 5, 6],
        "columns": [1, 0, 2],
    }
    text = plan.explain().splitlines()
    assert text[2].split()[:3] == ["0", "5", "4"]
    assert text[4].split()[:3] == ["2", "6", "added"]
    assert "before the final norm" in text[4]


# --- what native capture cannot do


def plan_of(spec: str) -> LayerPlan:
    return resolve(spec, "vllm", 6)


def check(plan: LayerPlan, version: str | None, *, deepseek: bool = True, **rest: bool) -> None:
    check_capture(
        plan, capture="native", model_is_deepseek=deepseek, engine_version=version, **rest
    )


@pytest.mark.parametrize("version", ["0.25.0", "0.25.1", "0.32.0", "0.32.0+cpu", "0.25.0.post1"])
def test_native_capture_takes_deepseek_from_0_25_0(version: str) -> None:
    check(plan_of("1,3"), version)


@pytest.mark.parametrize("version", ["0.18.0", "0.24.0", "0.25.0rc1", "0.25.0.dev3"])
def test_native_capture_of_depth_l_on_deepseek_is_refused_before_0_25_0(version: str) -> None:
    with fails("capture.native-final-depth", Refused):
        check(plan_of("1,3"), version)
    check(plan_of("1,3"), version, deepseek=False)


def test_a_probe_of_the_source_overrules_the_release_number() -> None:
    check(plan_of("1,3"), "0.24.0", captures_final_depth=True)
    with fails("capture.native-final-depth", Refused):
        check(plan_of("1,3"), "0.32.0", captures_final_depth=False)


def test_native_capture_of_depth_zero_on_deepseek_is_refused() -> None:
    with fails("capture.native-depth-0", Refused):
        check(plan_of("0,3"), "0.32.0")
    check(plan_of("0,3"), "0.32.0", deepseek=False)


def test_native_capture_is_refused_where_the_release_has_none() -> None:
    with fails("capture.native-absent", Refused):
        check(plan_of("1,3"), "0.16.0", deepseek=False)
    with fails("capture.native-model", Refused):
        check(plan_of("1,3"), "0.17.1")


@pytest.mark.parametrize("version", [None, "", "main"])
def test_unknown_engine_version_is_not_comparable(version: str | None) -> None:
    with fails("engine.version-unknown", NotComparable):
        check(plan_of("1,3"), version)


def test_other_captures_are_not_checked() -> None:
    check_capture(plan_of("0,3"), capture="none", model_is_deepseek=True, engine_version=None)


def test_layers_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import json, sys, harness.layers; "
        "print(json.dumps([m.split('.')[0] for m in sys.modules]))"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    loaded = set(json.loads(done.stdout))
    assert "harness" in loaded
    assert loaded <= {*sys.stdlib_module_names, "harness", "__main__"}


@pytest.mark.parametrize("count", range(2, 13))
def test_usual_layers_resolve_in_a_model_of_any_depth(count: int) -> None:
    plan = resolve(usual(count), "vllm", count, layout="training")
    assert plan.depths[-1] == count
    assert len(set(plan.depths)) == len(plan.depths)


def test_usual_layers_are_speculators_own_where_these_are_distinct() -> None:
    assert usual(61) == usual(7) == "speculators-0.9"
    assert usual(6) == "2,3,5"
