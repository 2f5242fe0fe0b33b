"""Prefix reuse is on by default, and what is reused is not captured."""

from __future__ import annotations

import inspect
from typing import Any

from harness.patches._judge import ask, binds, by_probe, by_signature
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, needed, obsolete
from harness.seams import Call

_NAME = "enable_prefix_caching"
_CALL = Call(keywords=("block_size", "gpu_memory_utilization", _NAME))


def _rule(signature: inspect.Signature) -> State:
    return binds(signature, _CALL, "prefix reuse is on where nobody says no")


def _make(original: Any) -> Any:
    ask(_rule, original)

    def cache_config(**arguments: Any) -> Any:
        return original(**{**arguments, _NAME: False})

    return cache_config


PATCH = Patch(
    id="prefix-reuse",
    process=Process.CONTROLLER,
    seam="config.cache",
    module=GENERATOR,
    changes=(Change("CacheConfig", _make),),
    summary="Turns prefix reuse off: a token that is not computed has no hidden state.",
    fault="AssertionError without text (IndexError: list index out of range from 0.26) for a "
    "prompt that fills a block; with a block hasher, rows missing from prompts that share a "
    "prefix or come again, and the rows of others in their place",
    silent=True,
    judge=by_probe(
        "prefix-caching.default",
        {
            "True": needed("on by default"),
            "None": obsolete("off where nobody asks for it"),
            "False": obsolete("off by default"),
        },
        also=by_signature("config.cache", _rule),
    ),
    releases=">=0.12",
    retire_when="speculators 0.3 is no longer used: 0.4.0 turns it off",
    upstream="vLLM 0.12.0, vllm/config/cache.py: True instead of None",
)
