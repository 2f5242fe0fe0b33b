"""``initialize_from_config`` no longer warms up."""

from __future__ import annotations

from typing import Any

from harness.patches._judge import by_probe, method
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import needed, obsolete
from harness.seams import Call

_WHY = "warming up is a call of its own"


def _make(original: Any) -> Any:
    def initialize_from_config(self: Any, *args: Any, **arguments: Any) -> Any:
        done = original(self, *args, **arguments)
        self.compile_or_warm_up_model()
        return done

    return initialize_from_config


PATCH = Patch(
    id="warm-up",
    process=Process.CONTROLLER,
    seam="executor.initialize_from_config",
    module=GENERATOR,
    changes=(Change("MultiprocExecutor.initialize_from_config", _make),),
    summary="Warms the workers up after their KV cache is made, as the engine core does.",
    fault="kernels are tuned and buffers sized in the first batch instead, on memory that the KV "
    "cache has taken",
    silent=True,
    judge=by_probe(
        "initialize-from-config.warms-up",
        {"no": needed(_WHY), "yes": obsolete("initialize_from_config warms up")},
        also=method("executor.compile_or_warm_up_model", Call(), _WHY),
    ),
    releases=">=0.27",
    retire_when="speculators' in-process generator is no longer used",
    upstream="vLLM 0.27.0, vllm/v1/executor/abstract.py",
)
