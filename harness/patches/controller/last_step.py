"""The step that tells the workers which requests are over is dropped."""

from __future__ import annotations

from typing import Any

from harness.errors import CheckFailed
from harness.patches._judge import there
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process

_EXECUTOR = "_harness_executor"


def _link(original: Any) -> Any:
    def init(self: Any, *args: Any, **arguments: Any) -> None:
        original(self, *args, **arguments)
        setattr(self.scheduler, _EXECUTOR, self.executor)

    return init


def _deliver(original: Any) -> Any:
    def schedule(self: Any, *args: Any, **arguments: Any) -> Any:
        output = original(self, *args, **arguments)
        executor = getattr(self, _EXECUTOR, None)
        if output.total_num_scheduled_tokens > 0 or executor is None:
            return output
        # The generator's loop ends here, whatever is left.
        if self.requests:
            raise _left(self.requests)
        if output.finished_req_ids:
            executor.execute_model(output)
        return output

    return schedule


def _left(requests: Any) -> CheckFailed:
    names = ", ".join(sorted(requests)[:3])
    return CheckFailed(
        "patches.requests-left",
        expected="every prompt computed when the scheduler has nothing more to do",
        found=f"{len(requests)} left: {names}",
        where="VllmHiddenStatesGenerator.generate",
        next="give the KV cache more memory, or send shorter prompts",
    )


PATCH = Patch(
    id="last-step",
    process=Process.CONTROLLER,
    seam="scheduler.schedule",
    module=GENERATOR,
    changes=(
        Change("VllmHiddenStatesGenerator.__init__", _link),
        Change("Scheduler.schedule", _deliver),
    ),
    summary="Sends the last, empty step to the workers, and refuses to end with prompts left.",
    fault="the workers' table of requests grows with every prompt; a prompt that never fitted "
    "into the KV cache comes back short",
    silent=True,
    judge=there(
        "scheduler.schedule",
        "scheduler-output.total_num_scheduled_tokens",
        "scheduler-output.finished_req_ids",
        why="0.3.0 drops the step that says which requests are over",
    ),
    releases=">=0.11",
    retire_when="speculators 0.3 is no longer used",
    upstream="speculators 0.3.0, generate(): the loop ends before the empty step is executed",
)
