"""A request is aborted after its first chunk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.patches._judge import method
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.seams import Call


def _make(original: Any) -> Any:
    def finish_requests(
        self: Any, request_ids: str | Iterable[str], finished_status: Any, *args: Any
    ) -> Any:
        names = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        over = [name for name in names if not _goes_on(self.requests.get(name))]
        return original(self, over, finished_status, *args)

    return finish_requests


def _goes_on(request: Any) -> bool:
    """Whether tokens of the prompt are still to come; schedule() has counted the step already."""
    return request is not None and request.num_computed_tokens < len(request.prompt_token_ids)


PATCH = Patch(
    id="all-chunks",
    process=Process.CONTROLLER,
    seam="scheduler.finish_requests",
    module=GENERATOR,
    changes=(Change("Scheduler.finish_requests", _make),),
    summary="Keeps a request until its whole prompt has been computed.",
    fault="the rest of a prompt that was cut at max_num_batched_tokens is never computed, and "
    "the prompts after it get shifted rows, some of the right shape",
    silent=True,
    judge=method(
        "scheduler.finish_requests", Call(positional=2), "0.3.0 aborts after the first chunk"
    ),
    releases=">=0.11",
    retire_when="speculators 0.3 is no longer used",
    upstream="speculators 0.3.0, generate(): finish_requests after each step",
)
