"""DeepSeek's layers scale the stream down in float16."""

from __future__ import annotations

import inspect
from typing import Any

from harness.errors import Refused
from harness.patches._judge import ask, binds, by_signature
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State
from harness.seams import Call

_CALL = Call(
    keywords=(
        "model",
        "tokenizer",
        "trust_remote_code",
        "dtype",
        "max_model_len",
        "enforce_eager",
    )
)
_SCALED = ("Deepseek", "Kimi")


def _rule(signature: inspect.Signature) -> State:
    return binds(signature, _CALL, "DeepSeek's layers scale float16")


def _make(original: Any) -> Any:
    ask(_rule, original)

    def model_config(**arguments: Any) -> Any:
        config = original(**arguments)
        if str(config.dtype) == "torch.float16":
            names = getattr(getattr(config, "hf_config", None), "architectures", None) or ()
            if not names or any(name.startswith(_SCALED) for name in names):
                raise _refused(str(arguments["model"]), ", ".join(names) or "an unknown model")
        return config

    return model_config


def _refused(where: str, model: str) -> Refused:
    return Refused(
        "patches.float16",
        expected="bfloat16 or float32",
        found=f"float16 for {model}, whose layers scale it down",
        where=where,
        next="set torch_dtype to bfloat16 in the checkpoint's config.json",
    )


PATCH = Patch(
    id="half-precision",
    process=Process.CONTROLLER,
    seam="config.model",
    module=GENERATOR,
    changes=(Change("ModelConfig", _make),),
    summary="Refuses float16 for DeepSeek and Kimi before the load.",
    fault="every row is the right one times 1 / routed_scaling_factor (0.354 for Kimi)",
    silent=True,
    judge=by_signature("config.model", _rule),
    releases=">=0.11",
    retire_when="no release scales the stream: vllm/model_executor/models/deepseek_v2.py",
    upstream="DeepseekV2DecoderLayer.forward: 'Fix FP16 overflow'",
)
