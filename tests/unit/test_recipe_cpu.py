"""What a recipe sets on a CPU, and for the multimodal wrapper."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.layers import resolve
from harness.recipe import Platform
from tests.unit.recipes import CPU, GPU, MIB, NEW, OLD, WRAPPER, Model, fails, recipe

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
