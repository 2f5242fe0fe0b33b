"""Seeded faults of a capture, switched by a file; preloaded into the workers by a test.

Each is a fault that a release of vLLM or a capture has had or could have: a layer
numbered one off, the final norm applied before saving, the rows of one request
saved for another.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch


def wanted() -> dict[str, Any]:
    path = Path(os.environ["HARNESS_TEST_FAULT"])
    return json.loads(path.read_text()) if path.exists() else {}


def install() -> None:
    from harness.inside import connector, spool, worker

    state: dict[str, Any] = {"decoder": None, "layers": None, "held": None}
    extension: Any = worker.WorkerExtension
    arm, read, submit = extension.hs_arm, connector.read_rows, spool.SpoolWriter.submit

    def hs_arm(self: Any, depths: list[int]) -> None:
        from harness.inside.modelwalk import text_decoder

        decoder = text_decoder(self.model_runner.model)
        if state["layers"] is None:
            state.update(decoder=decoder, layers=tuple(decoder.aux_hidden_state_layers))
        fault = wanted()
        layers = state["layers"]
        if fault.get("kind") == "shift":
            layers = tuple(fault["to"] if d == fault["from"] else d for d in layers)
        decoder.aux_hidden_state_layers = layers
        arm(self, depths)

    def read_rows(*args: Any) -> torch.Tensor:
        rows = read(*args)
        if wanted().get("kind") == "doubled-norm":
            with torch.inference_mode():
                rows[:, -1] = state["decoder"].norm(rows[:, -1].contiguous())
        return rows

    def submit_swapped(self: Any, task: Any) -> Any:
        if wanted().get("kind") != "swap" or task.key not in ("canary-0", "canary-1"):
            return submit(self, task)
        if state["held"] is None:
            state["held"] = task
            return None
        other, state["held"] = state["held"], None
        submit(self, replace(other, rows=task.rows))
        return submit(self, replace(task, rows=other.rows))

    extension.hs_arm = hs_arm
    vars(connector)["read_rows"] = read_rows
    setattr(spool.SpoolWriter, "submit", submit_swapped)  # noqa: B010
