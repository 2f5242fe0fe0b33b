"""``SchedulerConfig`` asks for ``is_encoder_decoder``."""

from __future__ import annotations

import inspect
from typing import Any

from harness.patches._judge import ask, binds, by_signature
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, obsolete
from harness.seams import Call

_NAME = "is_encoder_decoder"
_CALL = Call(keywords=("max_num_seqs", "max_model_len", "max_num_batched_tokens", _NAME))


def _rule(signature: inspect.Signature) -> State:
    parameter = signature.parameters.get(_NAME)
    if parameter is None or parameter.default is not parameter.empty:
        return obsolete(f"{_NAME} is not asked for")
    return binds(signature, _CALL, f"{_NAME} is required")


def _make(original: Any) -> Any:
    ask(_rule, original)

    def scheduler_config(**arguments: Any) -> Any:
        return original(**{_NAME: False, **arguments})

    return scheduler_config


PATCH = Patch(
    id="scheduler-config",
    process=Process.CONTROLLER,
    seam="config.scheduler",
    module=GENERATOR,
    changes=(Change("SchedulerConfig", _make),),
    summary="Says that the model is no encoder-decoder where SchedulerConfig wants to know.",
    fault="ValidationError: 1 validation error for SchedulerConfig / is_encoder_decoder / "
    "Field required",
    silent=False,
    judge=by_signature("config.scheduler", _rule),
    releases=">=0.12",
    retire_when="speculators 0.3 is no longer used: 0.4.0 passes it",
    upstream="vLLM 0.12.0, vllm/config/scheduler.py: an InitVar without default",
    repairs={"config.scheduler": "needs-argument:is_encoder_decoder"},
)
