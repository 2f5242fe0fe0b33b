"""Captured tensors leave the worker from its device."""

from __future__ import annotations

from typing import Any

from harness.errors import Refused
from harness.patches._judge import method
from harness.patches._modules import EXTENSION
from harness.patches._patch import Change, Patch, Process
from harness.seams import Call


def _make(original: Any) -> Any:
    def _get_captured_states(self: Any) -> Any:
        if getattr(self.model_runner, "use_async_scheduling", False):
            raise Refused(
                "patches.async-scheduling",
                expected="asynchronous scheduling off in the worker",
                found="on",
                where="worker.model_runner.use_async_scheduling",
                next="harness patches run, with the patch async-scheduling",
            )
        states = original(self)
        # This thread's stream computed the rows, and .cpu() waits for it.
        return None if states is None else [state.cpu() for state in states]

    return _get_captured_states


PATCH = Patch(
    id="host-copy",
    process=Process.WORKER,
    seam="executor.collective_rpc",
    module=EXTENSION,
    changes=(Change("HiddenStatesWorkerExtension._get_captured_states", _make),),
    summary="Copies the rows to the host before they are sent, and refuses async scheduling.",
    fault="tensors are pickled from the device, on a stream that need not wait for them, and "
    "become device tensors of the controller (GPU only)",
    silent=True,
    judge=method(
        "executor.collective_rpc", Call(positional=1), "0.3.0 returns tensors of the device"
    ),
    releases=">=0.11",
    retire_when="speculators' in-process generator is no longer used",
    upstream="speculators 0.3.0, custom_worker.py",
)
