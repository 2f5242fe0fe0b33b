"""A reply with device memory, asked of a busy worker: python async_replies.py ORDER.json

With asynchronous scheduling vLLM pickles a worker's replies on another thread, hence on another
stream, and nothing orders the two. Run with the engine's interpreter; prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from harness.inside.worker import WorkerExtension

ROWS, WIDTH = 512, 64
POISON, RIGHT = -1.0, 7.0
BUSY_CYCLES = 2_000_000_000  # about a second
ON_CUDA = torch.cuda.is_available()


class Racer(WorkerExtension):
    """Replies as speculators 0.3.0's worker does: with a tensor that is still being computed."""

    def race_reply(self) -> torch.Tensor:
        device = self.model_runner.device
        rows = torch.full((ROWS, WIDTH), POISON, device=device)
        if ON_CUDA:
            torch.cuda.synchronize()
            torch.cuda._sleep(BUSY_CYCLES)
        return rows.fill_(RIGHT)

    def race_facts(self) -> dict[str, Any]:
        stream = torch.cuda.current_stream().cuda_stream if ON_CUDA else 0
        return {"async": bool(self.model_runner.use_async_scheduling), "own_stream": stream != 0}


def refusal(llm: Any, folder: str) -> str:
    """Return why the patched capture does not start here; empty where it starts."""
    try:
        llm.collective_rpc("hs_capture", args=([1], 0, folder, 1))
    except Exception as error:
        return str(error)
    return ""


def main(order: dict[str, Any]) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(**order["engine_args"], worker_extension_cls="async_replies.Racer")
    llm.generate([{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=1), use_tqdm=False)
    (facts,) = llm.collective_rpc("race_facts")
    (reply,) = llm.collective_rpc("race_reply")
    wrong = int((reply.cpu() != RIGHT).any(-1).sum())
    refused = refusal(llm, order["folder"])
    print(json.dumps({**facts, "rows": ROWS, "wrong": wrong, "refused": refused}), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
