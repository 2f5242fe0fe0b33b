"""The last, empty step reaches the workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import CheckFailed
from harness.patches import by_id
from harness.seams import recorded
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "last-step"
    broken_by = (("scheduler-output.finished_req_ids", GONE),)


def step(tokens: int, *finished: str) -> Any:
    return SimpleNamespace(total_num_scheduled_tokens=tokens, finished_req_ids=set(finished))


def made(steps: list[Any], requests: dict[str, Any]) -> tuple[Any, list[Any]]:
    """A generator whose scheduler gives these steps, and what its executor was sent."""
    sent: list[Any] = []
    module = generator(recorded("0.16.0"))
    module.Scheduler.__init__ = lambda self: None
    module.Scheduler.schedule = lambda self: steps.pop(0)

    def init(self: Any) -> None:
        self.executor = SimpleNamespace(execute_model=sent.append)
        self.scheduler = module.Scheduler()
        self.scheduler.requests = requests

    module.VllmHiddenStatesGenerator.__init__ = init
    by_id("last-step").apply(handed(module))
    return module.VllmHiddenStatesGenerator().scheduler, sent


def test_only_the_empty_step_is_sent_and_only_if_it_says_something() -> None:
    steps = [step(8), step(0, "req_0_0"), step(0)]
    first, last, nothing = steps
    scheduler, sent = made(list(steps), {})
    assert [scheduler.schedule() for _ in range(3)] == [first, last, nothing]
    assert sent == [last]


def test_a_prompt_that_was_never_computed_is_an_error() -> None:
    scheduler, sent = made([step(0)], {"req_0_3": object()})
    with pytest.raises(CheckFailed, match="req_0_3"):
        scheduler.schedule()
    assert sent == []
