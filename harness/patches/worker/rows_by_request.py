"""Rows are kept in the order of the batch and cut in the order of submission."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from harness.errors import Refused
from harness.patches._judge import there
from harness.patches._modules import EXTENSION
from harness.patches._patch import Change, Patch, Process
from harness.patches.worker._rows import Rows

_STEP = "_harness_step"
"""Attribute of the runner: the scheduler output of the step in progress, or None."""

_V2 = "vllm.v1.worker.gpu.model_runner"


def _reset(original: Any) -> Any:
    def _reset_capture(self: Any) -> Any:
        _watch(self.model_runner)
        return original(self)

    return _reset_capture


def _store(original: Any) -> Any:
    def _store_captured_states(self: Any, aux_hidden_states: Any) -> None:
        runner = self.model_runner
        step = getattr(runner, _STEP, None)
        if step is None:
            return  # a warm-up: no request's rows
        if self._captured_states is None:
            self._captured_states = Rows()
        batch = runner.input_batch
        requests = [
            (
                name,
                int(batch.num_computed_tokens_cpu[number]),
                int(step.num_scheduled_tokens[name]),
                len(runner.requests[name].prompt_token_ids),
            )
            # The batch's own order at this forward pass: it is reordered at will.
            for number, name in enumerate(batch.req_ids[: batch.num_reqs])
        ]
        self._captured_states.add(aux_hidden_states, requests, len(aux_hidden_states[0]))

    return _store_captured_states


def _watch(runner: Any) -> None:
    """Let the runner remember the step in progress."""
    if hasattr(runner, _STEP):
        return
    if any(base.__module__ == _V2 for base in type(runner).__mro__):
        raise Refused(
            "patches.runner-v2",
            expected="model runner V1, whose batch tells the order of the rows",
            found="model runner V2",
            where="the worker",
            next="set VLLM_USE_V2_MODEL_RUNNER=0",
        )
    execute = runner.execute_model
    setattr(runner, _STEP, None)

    def execute_model(scheduler_output: Any, *args: Any, **arguments: Any) -> Any:
        setattr(runner, _STEP, scheduler_output)
        try:
            return execute(scheduler_output, *args, **arguments)
        finally:
            setattr(runner, _STEP, None)

    runner.execute_model = execute_model


PATCH = Patch(
    id="rows-by-request",
    process=Process.WORKER,
    seam="runner.execute_model",
    module=EXTENSION,
    changes=(
        Change("HiddenStatesWorkerExtension._reset_capture", _reset),
        Change("HiddenStatesWorkerExtension._store_captured_states", _store),
    ),
    summary="Keeps rows by request and position, and refuses to return a prompt with a gap.",
    fault="rows of another prompt, of the right shape, where a batch is reordered or a prompt is "
    "cut; rows of the warm-up are kept",
    silent=True,
    judge=there(
        "runner.execute_model",
        "runner.input_batch",
        "runner.requests",
        "input-batch.req_ids",
        "input-batch.num_reqs",
        "input-batch.num_computed_tokens_cpu",
        "cached-request.prompt_token_ids",
        "scheduler-output.num_scheduled_tokens",
        why="0.3.0 cuts the rows in the order of submission",
    ),
    releases=">=0.11",
    retire_when="speculators 0.3 is no longer used",
    upstream="speculators 0.3.0, custom_worker.py and generate()",
    environment=MappingProxyType({"VLLM_USE_V2_MODEL_RUNNER": "0"}),
)
