"""What a recipe makes of lengths, budgets and the number of workers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.recipe import Platform
from tests.unit.recipes import GPU, fails, recipe

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
