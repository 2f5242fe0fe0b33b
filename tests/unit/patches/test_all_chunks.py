"""A request is kept until its whole prompt is computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harness.patches import by_id
from harness.seams import recorded
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "all-chunks"
    broken_by = (("scheduler.finish_requests", GONE),)


def request(computed: int, prompt: int) -> Any:
    return SimpleNamespace(num_computed_tokens=computed, prompt_token_ids=[0] * prompt)


def test_only_requests_with_nothing_to_come_are_finished() -> None:
    module = generator(recorded("0.16.0"))
    module.Scheduler.__init__ = lambda self: None
    module.Scheduler.finish_requests = lambda self, ids, status: (ids, status)
    by_id("all-chunks").apply(handed(module))
    scheduler = module.Scheduler()
    scheduler.requests = {"cut": request(24, 50), "whole": request(50, 50)}
    assert scheduler.finish_requests(["cut", "whole", "gone"], "ABORTED") == (
        ["whole", "gone"],
        "ABORTED",
    )
    assert scheduler.finish_requests("cut", "ABORTED") == ([], "ABORTED")
