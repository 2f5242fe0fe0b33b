"""Contracts of the recipe: every trap is one line with a reason, or a refusal."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.engine_facts import inspect
from harness.errors import NotComparable, UsageError
from harness.layers import resolve
from harness.recipe import EngineFacts, Platform
from tests.unit.recipes import CPU, GPU, NEW, WRAPPER, Model, fails, recipe

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
