"""``Request`` no longer takes ``eos_token_id``."""

from __future__ import annotations

import inspect
from typing import Any

from harness.patches._judge import ask, binds, by_signature
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, obsolete
from harness.seams import Call

_NAME = "eos_token_id"
# A block hasher is left out on purpose: with one, prefix reuse would drop rows (prefix-reuse).
_CALL = Call(
    keywords=(
        "request_id",
        "prompt_token_ids",
        "sampling_params",
        "pooling_params",
        "arrival_time",
    )
)


def _rule(signature: inspect.Signature) -> State:
    if _NAME in signature.parameters:
        return obsolete(f"{_NAME} is taken")
    return binds(signature, _CALL, f"{_NAME} is not taken")


def _make(original: Any) -> Any:
    ask(_rule, original)

    def request(**arguments: Any) -> Any:
        arguments.pop(_NAME, None)
        return original(**arguments)

    return request


PATCH = Patch(
    id="request-arguments",
    process=Process.CONTROLLER,
    seam="request",
    module=GENERATOR,
    changes=(Change("Request", _make),),
    summary="Leaves eos_token_id out; one token is generated whatever it is.",
    fault="TypeError: Request.__init__() got an unexpected keyword argument 'eos_token_id'",
    silent=False,
    judge=by_signature("request", _rule),
    releases=">=0.17",
    retire_when="speculators 0.3 and 0.4 are no longer used: both pass it",
    upstream="vLLM 0.17.0, vllm/v1/request.py: the sampling parameters hold it",
    repairs={"request": "unknown-keyword:eos_token_id"},
)
