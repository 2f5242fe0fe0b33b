"""Seeded faults of a capture, switched by a file; preloaded into the workers by a test.

Each is a fault that a release of vLLM or a capture has had or could have: a layer
numbered one off, the final norm applied before saving, the rows of one request
saved for another.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch


def wanted() -> dict[str, Any]:
    path = Path(os.environ["HARNESS_TEST_FAULT"])
    return json.loads(path.read_text()) if path.exists() else {}


def install() -> None:
    from harness.inside import spool

    submit, state = spool.SpoolWriter.submit, {"held": None}

    def submit_swapped(self: Any, task: Any) -> Any:
        if wanted().get("kind") != "swap" or task.key not in ("canary-0", "canary-1"):
            return submit(self, task)
        if state["held"] is None:
            state["held"] = task
            return None
        other, state["held"] = state["held"], None
        submit(self, replace(other, rows=task.rows))
        return submit(self, replace(task, rows=other.rows))

    setattr(spool.SpoolWriter, "submit", submit_swapped)  # noqa: B010
    spoil_samples(spool)
    spoil_patched()
    try:
        from harness.inside import connector
    except ImportError:
        return  # a release without native capture
    spoil_native(connector)


def spoil_samples(spool: Any) -> None:
    """Spoil what is written, whatever captured it: a lost row, two prompts for each other, slow."""
    submit, write = spool.SpoolWriter.submit, spool.SpoolWriter._write
    held: dict[int, Any] = {}
    one_at_a_time = threading.Lock()

    def submit_spoiled(self: Any, task: Any) -> Any:
        if wanted().get("kind") != "swap-any":
            return submit(self, task)
        other = held.pop(len(task.rows), None)
        if other is None:
            held[len(task.rows)] = task
            return None
        submit(self, replace(other, rows=task.rows, wait=task.wait))
        return submit(self, replace(task, rows=other.rows, wait=other.wait))

    def write_spoiled(self: Any, task: Any) -> Any:
        fault = wanted()
        if fault.get("kind") == "drop-row":
            task = replace(task, rows=task.rows[:-1])
        if fault.get("kind") == "slow":
            with one_at_a_time:
                time.sleep(len(task.rows) * fault["seconds_per_row"])
        return write(self, task)

    writer: Any = spool.SpoolWriter
    writer.submit, writer._write = submit_spoiled, write_spoiled


def spoil_native(connector: Any) -> None:
    from harness.inside import worker

    state: dict[str, Any] = {"decoder": None, "layers": None}
    extension: Any = worker.WorkerExtension
    arm, read = extension.hs_arm, connector.read_rows

    def hs_arm(self: Any, depths: list[int]) -> None:
        from harness.inside.modelwalk import text_decoder

        decoder = text_decoder(self.model_runner.model)
        if self._hs_capture is None:
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

    extension.hs_arm = hs_arm
    vars(connector)["read_rows"] = read_rows


def spoil_patched() -> None:
    from harness.inside import patched

    capture: Any = patched.PatchedCapture
    at, keep = capture._at, capture._keep

    def spoiled_at(self: Any, depth: int, names: Any) -> Any:
        """Read depth ``to`` where ``from`` is read: each hook asks anew which one it is."""
        see = at(self, depth, names)

        def read(module: Any, args: Any, kwargs: Any) -> None:
            fault = wanted()
            if fault.get("kind") == "shift" and fault["from"] == depth:
                return  # another depth's hook stands in for it
            see(module, args, kwargs)

        return read

    def spoiled_keep(self: Any) -> None:
        fault, step = wanted(), self._step
        if fault.get("kind") == "shift":
            self._streams[fault["from"]] = self._streams[fault["to"]]
        if fault.get("kind") == "doubled-norm":
            final = len(self._decoder.layers)
            self._step = None  # the norm's own hook must not see this pass
            self._streams[final] = self._decoder.norm(self._streams[final])
            self._step = step
        keep(self)

    def hook(self: Any) -> None:
        """Read every depth, so that a shift has something to take."""
        asked, self._depths = self._depths, list(range(1, len(self._decoder.layers) + 1))
        capture_hook(self)
        self._depths = asked

    capture_hook = capture._hook
    capture._at, capture._keep, capture._hook = spoiled_at, spoiled_keep, hook
