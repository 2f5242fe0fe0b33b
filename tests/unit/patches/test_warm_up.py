"""Workers warm up after their KV cache is made."""

from __future__ import annotations

from harness.patches import by_id
from harness.seams import recorded
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "warm-up"
    broken_by = (("executor.compile_or_warm_up_model", GONE),)


def test_warming_up_follows_the_cache() -> None:
    module = generator(recorded("0.32.0"))
    calls: list[str] = []
    executor = module.MultiprocExecutor
    executor.initialize_from_config = lambda self, configs: calls.append("cache")
    executor.compile_or_warm_up_model = lambda self: calls.append("warm")
    by_id("warm-up").apply(handed(module))
    module.MultiprocExecutor().initialize_from_config([])
    assert calls == ["cache", "warm"]
