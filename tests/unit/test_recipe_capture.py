"""What a recipe says of the capture, and the releases that it is refused on."""

from __future__ import annotations

import dataclasses

import pytest
from packaging.version import Version

from harness.errors import UsageError
from harness.layers import resolve
from harness.recipe import EngineFacts, Platform, choose_capture, writer_threads
from tests.unit.recipes import GPU, MIB, NEW, OLD, WRAPPER, Model, fails, recipe, request


def test_layer_ids_reach_the_engine_sorted_unique_and_with_depth_l() -> None:
    made = recipe(layers=resolve("5,1,3", "vllm", 6))
    config = made.engine_args["speculative_config"]
    ids = config["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
    assert ids == [1, 3, 5, 6]
    assert (config["method"], config["num_speculative_tokens"]) == ("extract_hidden_states", 1)
    assert ids in made.expect.values()


def test_our_connector_is_named_by_module_and_takes_no_file_lock() -> None:
    assert recipe().engine_args["kv_transfer_config"] == {
        "kv_connector": "SpoolConnector",
        "kv_connector_module_path": "harness.inside.connector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {
            "spool": "/out/.spool",
            "shared_storage_path": "/out/.spool",
            "use_synchronization_lock": False,
            "writer_threads": 4,
        },
    }


@pytest.mark.parametrize(("cores", "threads"), [(2, 4), (8, 8), (16, 16), (128, 16)])
def test_a_gpu_gets_writer_threads_by_its_cores_within_bounds(cores: int, threads: int) -> None:
    made = recipe(platform=Platform("cuda", cores, gpus=1), kv_cache_memory_bytes=1 << 30)
    config = made.engine_args["kv_transfer_config"]["kv_connector_extra_config"]
    assert config["writer_threads"] == threads


@pytest.mark.parametrize(("cores", "threads"), [(2, 4), (16, 8), (128, 16)])
def test_a_patched_captures_writers_leave_half_of_the_cores_to_the_step(
    cores: int, threads: int
) -> None:
    assert writer_threads(Platform("cuda", cores, gpus=1), "patched") == threads
    assert writer_threads(Platform("cpu", cores), "patched") == 4


def test_patched_capture_differs_from_plain_prefill_by_its_watch_over_the_workers_alone() -> None:
    plain, patched = recipe(capture="none", layers=None), recipe(capture="patched")
    more = {
        name: value
        for name, value in patched.engine_args.items()
        if plain.engine_args.get(name) != value
    }
    assert more == {"scheduler_cls": "harness.inside.scheduler.WatchingScheduler"}
    assert patched.env == plain.env
    assert patched.expect["scheduler_config.async_scheduling"] is False
    assert patched.expect["cache_config.enable_prefix_caching"] is False


@pytest.mark.parametrize(
    ("engine", "layers", "capture", "why"),
    [
        (NEW, "3,1", "native", "0.32.0"),
        (NEW, "0,3", "patched", "depth 0"),
        (OLD, "3,1", "patched", "0.17.0"),
        (dataclasses.replace(OLD, vllm=Version("0.17.1")), "3,1", "patched", "0.18.0"),
        (dataclasses.replace(OLD, vllm=Version("0.24.0")), "3,1", "patched", "0.25.0"),
    ],
)
def test_auto_takes_native_where_the_release_can_do_what_is_asked_and_says_why(
    engine: EngineFacts, layers: str, capture: str, why: str
) -> None:
    choice = choose_capture(request(engine=engine, layers=resolve(layers, "vllm", 6)))
    assert choice.capture == capture
    assert why in choice.why


def test_patched_capture_refuses_float16_as_well() -> None:
    with fails("recipe.dtype", UsageError):
        recipe(capture="patched", dtype="float16", engine=OLD)


def test_releases_that_read_the_cpu_cache_from_the_environment_get_it_there_too() -> None:
    old = recipe(capture="patched", engine=OLD)
    assert old.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    asked = recipe(capture="patched", engine=OLD, kv_cache_memory_bytes=3 << 30)
    assert asked.env["VLLM_CPU_KVCACHE_SPACE"] == "3"
    knows = dataclasses.replace(OLD, probes={"cpu_cache_bytes": True})
    assert "VLLM_CPU_KVCACHE_SPACE" not in recipe(capture="patched", engine=knows).env


@pytest.mark.parametrize(("engine", "skip"), [(NEW, True), (OLD, False)])
def test_a_wrapper_gets_a_tokenizer_only_where_the_release_asks_for_one(
    engine: EngineFacts, skip: bool
) -> None:
    made = recipe(model=WRAPPER, engine=engine, capture="patched")
    assert made.engine_args["skip_tokenizer_init"] is skip
    assert recipe(engine=engine, capture="patched").engine_args["skip_tokenizer_init"] is True


def test_plain_prefill_differs_from_native_capture_by_nothing_but_capture() -> None:
    plain = recipe(capture="none", layers=None, spool=None, kv_cache_memory_bytes=256 * MIB)
    native = recipe(kv_cache_memory_bytes=256 * MIB)
    extra = native.engine_args.keys() - plain.engine_args.keys()
    assert extra == {"speculative_config", "kv_transfer_config"}
    assert {k: native.engine_args[k] for k in plain.engine_args} == plain.engine_args
    assert native.env == plain.env


def test_depth_zero_on_deepseek_is_refused_before_an_engine_starts() -> None:
    with fails("capture.native-depth-0"):
        recipe(layers=resolve("0,3", "vllm", 6))
    with fails("capture.native-depth-0"):
        recipe(layers=resolve("0,3", "vllm", 6), model=WRAPPER)
    recipe(
        layers=resolve("0,3", "vllm", 6),
        model=Model(architecture="Qwen3ForCausalLM", is_mla=False),
    )


def test_release_that_loses_depth_l_of_deepseek_is_refused() -> None:
    probes = {**NEW.probes, "captures_final_depth_deepseek": False}
    engine = EngineFacts(vllm=Version("0.24.0"), dist="vllm", probes=probes)
    with fails("capture.native-final-depth"):
        recipe(engine=engine, platform=GPU)


def test_release_without_the_native_method_is_refused() -> None:
    with fails("capture.native-absent"):
        recipe(engine=OLD)
    with fails("capture.native-absent"):
        recipe(engine=dataclasses.replace(NEW, probes={**NEW.probes, "native_extract": False}))
