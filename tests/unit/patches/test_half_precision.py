"""float16 is refused where the layers scale it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import Refused
from harness.patches import by_id
from harness.seams import Entry, recorded
from tests.unit.patches.contract import Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "half-precision"
    broken_by = (("config.model", Entry("class", signature="(model)")),)


def configured(architecture: str | None, dtype: str) -> Any:
    module = generator(recorded("0.16.0"))
    original = module.ModelConfig

    def resolved(**keywords: Any) -> Any:
        config = original(**keywords)
        config.dtype = dtype
        config.hf_config = SimpleNamespace(architectures=architecture and [architecture])
        return config

    resolved.__signature__ = original.__signature__  # type: ignore[attr-defined]
    module.ModelConfig = resolved  # type: ignore[attr-defined]
    by_id("half-precision").apply(handed(module))
    return module.ModelConfig(
        model="/models/it",
        tokenizer="/models/it",
        trust_remote_code=True,
        dtype="auto",
        max_model_len=64,
        enforce_eager=True,
    )


@pytest.mark.parametrize(
    "architecture", ["DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", None]
)
def test_what_auto_resolved_to_counts(architecture: str | None) -> None:
    with pytest.raises(Refused, match=r"patches\.float16") as refused:
        configured(architecture, "torch.float16")
    assert "/models/it" in str(refused.value)
    assert configured(architecture, "torch.bfloat16").dtype == "torch.bfloat16"


def test_other_models_may_be_in_float16() -> None:
    assert configured("LlamaForCausalLM", "torch.float16").dtype == "torch.float16"
