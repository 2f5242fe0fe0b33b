"""What really computes: runner, attention, expert kernels, block size.

Pinned: the V1 runner; that quantised experts run on a quantised kernel in every worker and not
on a dequantised copy; that all ranks agree. Which kernel it is differs from card to card: it is
printed, recorded with the baseline of its key, and compared there.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.plugin.engine import Engine
from tests.gpu.conftest import Figures

pytestmark = [pytest.mark.gpu, pytest.mark.engine]
FACTS = (
    "runner",
    "model",
    "decoder",
    "layers",
    "dtype",
    "device",
    "attention",
    "methods",
    "block_size",
)


@pytest.fixture(scope="module")
def seen(engine: Engine) -> list[dict[str, Any]]:
    return [{name: worker[name] for name in FACTS} for worker in engine.loaded.workers]


def test_all_workers_run_the_same_code(
    engine: Engine, seen: list[dict[str, Any]], figures: Figures
) -> None:
    figures(seen=seen[0], workers=len(seen))
    assert len(seen) == engine.plan.options.tensor_parallel_size
    assert all(one == seen[0] for one in seen), seen


def test_the_runner_is_the_one_that_was_proved(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["runner"] == "vllm.v1.worker.gpu_model_runner"


def test_attention_is_latent_where_the_model_has_it(
    engine: Engine, seen: list[dict[str, Any]]
) -> None:
    if not engine.plan.model.is_mla:
        pytest.skip("the model has no latent attention")
    assert "MLA" in seen[0]["attention"], seen[0]


def test_quantised_experts_run_on_a_quantised_kernel(
    engine: Engine, seen: list[dict[str, Any]]
) -> None:
    if engine.plan.model.quantization != "int4":
        pytest.skip("the model's experts are not quantised")
    methods = seen[0]["methods"]
    assert any("WNA16" in name for name in methods), methods
    experts = [name for name in methods if "MoE" in name]
    assert experts
    assert not [name for name in experts if name.startswith("Unquantized")], methods
