"""Runs speculators 0.3.0's generator, unmodified, once for each set of patches that it is given.

``drive.py PLAN OUT``: PLAN is a JSON list of runs, OUT a folder for what came of them. It runs in
the generation-1 interpreter with the import hook of ``harness patches run``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness.patches import PATCHES, Process, by_id
from harness.patches.hook import IDS


def requests_in_table(worker: Any) -> int:
    """How many requests a worker still remembers."""
    return len(worker.model_runner.requests)


def capture_is_asynchronous(worker: Any) -> bool:
    return bool(worker.model_runner.use_async_scheduling)


def put_on(ids: list[str]) -> None:
    """Have these patches and no others in force: here, and in workers started from now on."""
    os.environ[IDS] = " ".join(ids)
    for patch in reversed(PATCHES):
        if patch.process is Process.CONTROLLER:
            patch.undo()
    for id in ids:
        if by_id(id).process is Process.CONTROLLER:
            by_id(id).apply()


def run(generator: Any, plan: dict[str, Any], out: Path) -> dict[str, Any]:
    """Make one generator and send it every batch."""
    settings = {"dtype": plan["dtype"]}
    if plan.get("text_only"):
        # 0.3.0 sets no limit: it would want the weights of the vision tower.
        settings["limit_mm_per_prompt"] = {"image": 0, "video": 0, "vision_chunk": 0}
    model_config, scheduler_config = generator.ModelConfig, generator.SchedulerConfig
    generator.ModelConfig = lambda **keywords: model_config(**{**keywords, **settings})
    if plan.get("budget"):
        generator.SchedulerConfig = lambda **keywords: scheduler_config(
            **{**keywords, "max_num_batched_tokens": plan["budget"]}
        )
    made = generator.VllmHiddenStatesGenerator.__new__(generator.VllmHiddenStatesGenerator)
    said: dict[str, Any] = {"left": [], "error": None, "seconds": []}
    try:
        made.__init__(
            plan["model"],
            layer_ids=plan["layer_ids"],
            max_model_len=512,
            tensor_parallel_size=plan.get("tensor_parallel_size", 1),
        )
        for number, batch in enumerate(plan["batches"]):
            started = time.monotonic()
            results = made.generate(batch)
            said["seconds"].append(time.monotonic() - started)
            for place, result in enumerate(results):
                assert result["input_ids"].tolist() == batch[place]
                for column, states in enumerate(result["hidden_states"]):
                    assert states.device.type == "cpu"
                    name = f"{plan['name']}.{number}.{place}.{column}.npy"
                    np.save(out / name, states.float().numpy())
            said["left"].append(made.executor.collective_rpc(requests_in_table))
        said["async"] = made.executor.collective_rpc(capture_is_asynchronous)
    except Exception as error:
        said["error"] = {"type": type(error).__name__, "text": str(error)}
    finally:
        generator.ModelConfig, generator.SchedulerConfig = model_config, scheduler_config
        if hasattr(made, "executor"):
            made.executor.shutdown()
    return said


def main() -> None:
    plans, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    import speculators.data_generation.vllm_hidden_states_generator as generator

    for plan in plans:
        put_on(plan["patches"])
        said = run(generator, plan, out)
        (out / f"{plan['name']}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
