"""``get_kv_cache_config_from_groups`` no longer takes the specs."""

from __future__ import annotations

import inspect
from typing import Any

from harness.patches._judge import ask, binds, by_signature
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, obsolete
from harness.seams import Call

_NAME = "kv_cache_specs"


def _rule(signature: inspect.Signature) -> State:
    if _NAME in signature.parameters:
        return obsolete(f"{_NAME} is taken")
    call = Call(keywords=("vllm_config", "kv_cache_groups", "available_memory"))
    return binds(signature, call, f"{_NAME} is not taken")


def _make(original: Any) -> Any:
    ask(_rule, original)

    def get_kv_cache_config_from_groups(**arguments: Any) -> Any:
        arguments.pop(_NAME, None)
        return original(**arguments)

    return get_kv_cache_config_from_groups


PATCH = Patch(
    id="kv-config-call",
    process=Process.CONTROLLER,
    seam="kv.config-from-groups",
    module=GENERATOR,
    changes=(Change("get_kv_cache_config_from_groups", _make),),
    summary="Leaves kv_cache_specs out of the call.",
    fault="TypeError: get_kv_cache_config_from_groups() got an unexpected keyword argument "
    "'kv_cache_specs'",
    silent=False,
    judge=by_signature("kv.config-from-groups", _rule),
    releases=">=0.12",
    retire_when="speculators 0.3 is no longer used: 0.4.0 leaves it out",
    upstream="vLLM 0.12.0, vllm/v1/core/kv_cache_utils.py: the groups hold the specs",
    repairs={"kv.config-from-groups": "unknown-keyword:kv_cache_specs"},
)
