"""``execute_model`` keeps its result until ``sample_tokens`` fetches it."""

from __future__ import annotations

from typing import Any

from harness.patches._judge import by_probe, method
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import needed, obsolete
from harness.seams import Call

_WHY = "execute_model returns None and waits for sample_tokens"


def _make(original: Any) -> Any:
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **arguments: Any) -> Any:
        output = original(self, scheduler_output, *args, **arguments)
        # None only where tokens were scheduled; no grammar: nothing is structured here.
        return self.sample_tokens(None) if output is None else output

    return execute_model


PATCH = Patch(
    id="two-phase",
    process=Process.CONTROLLER,
    seam="executor.execute_model",
    module=GENERATOR,
    changes=(Change("MultiprocExecutor.execute_model", _make),),
    summary="Samples after each step whose result is kept.",
    fault="the second step of a run: RuntimeError: Worker failed with error 'State error: "
    "sample_tokens() must be called after execute_model() returns None.'",
    silent=False,
    judge=by_probe(
        "execute-model.two-phase",
        {"yes": needed(_WHY), "no": obsolete("execute_model returns its result")},
        also=method("executor.sample_tokens", Call(positional=1), _WHY),
    ),
    releases=">=0.11.1",
    retire_when="speculators 0.3 is no longer used: 0.4.0 samples",
    upstream="vLLM 0.11.1, vllm/v1/worker/gpu_model_runner.py",
)
