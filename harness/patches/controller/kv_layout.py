"""The layout of the KV cache is decided once, by the engine core: the generator has none."""

from __future__ import annotations

import inspect
from typing import Any

from harness.patches._judge import binds
from harness.patches._modules import GENERATOR, live
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, Status, broken, obsolete
from harness.seams import Call, Surface

_SEAM, _TELL = "executor.kv-layout", "executor.set_kv_cache_layout"
_INTERLEAVE = "cp_kv_cache_interleave_size"
_MODULE, _NAME = "vllm.v1.attention.backends.utils", "resolve_kv_cache_layout"


def _judge(surface: Surface) -> State:
    entry = surface.entry(_SEAM)
    if entry.missing:
        return obsolete("the layout is not decided in one place")
    signature = entry.parsed()
    if signature is None:
        return broken(f"{_SEAM} is a {entry.kind} now")
    asked = binds(signature, Call(positional=2), "workers wait for the layout")
    tell = surface.entry(_TELL)
    taken = tell.parsed()
    if asked.status is not Status.NEEDED or taken is None:
        return broken(f"{_TELL} is {tell.kind}") if taken is None else asked
    return binds(taken, Call(positional=1 + (_INTERLEAVE in taken.parameters)), asked.reason)


def _make(original: Any) -> Any:
    def init(self: Any, *args: Any, **arguments: Any) -> None:
        original(self, *args, **arguments)
        resolve = getattr(live(_MODULE), _NAME, None)
        if resolve is not None:
            # The same three steps as vllm/v1/engine/core.py of 0.29.0, in the same order.
            layout = resolve(self.vllm_config, self.get_supported_kv_cache_layouts())
            if _INTERLEAVE in inspect.signature(self.set_kv_cache_layout).parameters:
                # The engine core adjusts it for a KV connector before; the generator has none.
                size = self.vllm_config.parallel_config.cp_kv_cache_interleave_size
                self.set_kv_cache_layout(layout.name, size)
            else:
                self.set_kv_cache_layout(layout.name)

    return init


PATCH = Patch(
    id="kv-layout",
    process=Process.CONTROLLER,
    seam=_SEAM,
    module=GENERATOR,
    changes=(Change("MultiprocExecutor.__init__", _make),),
    summary="Decides the layout when the workers are up and tells them, as the engine core does.",
    fault="ValueError: KV cache layout has not been resolved yet; it is resolved once by the "
    "engine core",
    silent=False,
    judge=_judge,
    releases=">=0.29",
    retire_when="speculators' in-process generator is no longer used",
    upstream="vLLM 0.29.0, vllm/v1/engine/core.py; 0.33.0 tells an interleave size too",
)
