"""The list that the generator takes the first of."""

from __future__ import annotations

from typing import Any

from harness.patches import Status, by_id
from harness.seams import recorded
from tests.unit.patches.contract import GONE, Contract, with_probe
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "single-reply"
    broken_by = (("executor.collective_rpc", GONE),)


def test_only_the_generators_own_question_gets_a_list_of_one() -> None:
    module = generator(recorded("0.16.0"))
    module.MultiprocExecutor.collective_rpc = rpc
    by_id("single-reply").apply(handed(module))
    executor = module.MultiprocExecutor()
    (reply,) = executor.collective_rpc("_get_captured_states", unique_reply_rank=0)
    assert reply == ("_get_captured_states", 0)
    # vLLM's own steps go through the same method.
    assert executor.collective_rpc("execute_model", unique_reply_rank=1) == ("execute_model", 1)


def rpc(self: Any, method: str, unique_reply_rank: int) -> tuple[str, int]:
    return method, unique_reply_rank


def test_a_reply_that_nobody_knows_is_broken() -> None:
    surface = with_probe(recorded("0.16.0"), "collective-rpc.single-reply", "unknown")
    assert by_id("single-reply").state(surface).status is Status.BROKEN
