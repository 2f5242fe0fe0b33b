"""Each step whose result is kept is sampled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harness.patches import by_id
from harness.seams import recorded
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "two-phase"
    broken_by = (("executor.sample_tokens", GONE),)


def test_a_kept_result_is_fetched_and_an_empty_one_is_not() -> None:
    module = generator(recorded("0.16.0"))
    calls: list[Any] = []
    module.MultiprocExecutor.execute_model = lambda self, step: None if step.tokens else "empty"
    module.MultiprocExecutor.sample_tokens = lambda self, grammar: calls.append(grammar) or "out"
    by_id("two-phase").apply(handed(module))
    executor = module.MultiprocExecutor()
    assert executor.execute_model(SimpleNamespace(tokens=3)) == "out"
    assert executor.execute_model(SimpleNamespace(tokens=0)) == "empty"
    assert calls == [None]
