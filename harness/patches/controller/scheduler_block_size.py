"""``Scheduler`` asks for the block size: the one that the workers use."""

from __future__ import annotations

import inspect
from typing import Any

from harness.errors import Refused
from harness.patches._judge import ask, binds, by_signature, without_self
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, obsolete
from harness.seams import Call

_NAME = "block_size"
_CALL = Call(keywords=("vllm_config", "kv_cache_config", "structured_output_manager", _NAME))


def _rule(signature: inspect.Signature) -> State:
    if _NAME not in signature.parameters:
        return obsolete(f"{_NAME} is not taken")
    return binds(signature, _CALL, f"{_NAME} is an argument")


def _make(original: Any) -> Any:
    ask(without_self(_rule), original)

    def init(self: Any, **arguments: Any) -> None:
        if _NAME not in arguments:
            arguments[_NAME] = _resolved(arguments["vllm_config"], arguments["kv_cache_config"])
        original(self, **arguments)

    return init


def _resolved(vllm_config: Any, kv_cache_config: Any) -> int:
    """Return the block size of the scheduler, as the engine core reckons it.

    The platform may choose another than was asked for (vLLM 0.16.0, ``platforms/cuda.py``:
    64 and 128 for some MLA backends), and from 0.18.0 only the workers know which.
    """
    sizes = {int(group.kv_cache_spec.block_size) for group in kv_cache_config.kv_cache_groups}
    cache, parallel = vllm_config.cache_config, vllm_config.parallel_config
    if len(sizes) != 1:
        raise Refused(
            "patches.block-sizes",
            expected="one block size for all layers",
            found=", ".join(str(size) for size in sorted(sizes)) or "no KV cache",
            where="KVCacheConfig.kv_cache_groups",
            next="use the native capture: harness extract",
        )
    (size,) = sizes
    cache.block_size = size
    ranks: int = getattr(parallel, "decode_context_parallel_size", 1) or 1
    ranks *= getattr(parallel, "prefill_context_parallel_size", 1) or 1
    return size * ranks


PATCH = Patch(
    id="scheduler-block-size",
    process=Process.CONTROLLER,
    seam="scheduler",
    module=GENERATOR,
    changes=(Change("Scheduler.__init__", _make),),
    summary="Passes the block size that the workers resolved, never a constant.",
    fault="TypeError: Scheduler.__init__() missing 1 required positional argument: 'block_size'",
    silent=False,
    judge=by_signature("scheduler", _rule),
    releases=">=0.11.1",
    retire_when="speculators' in-process generator is no longer used: 0.4.0 passes the one that "
    "it asked for, which need not be the one in use",
    upstream="vLLM 0.11.1, vllm/v1/core/sched/scheduler.py",
    repairs={"scheduler": "needs-argument:block_size"},
)
