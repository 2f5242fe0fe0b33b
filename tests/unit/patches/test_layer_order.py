"""Layers come back as the caller asked for them."""

from __future__ import annotations

from types import SimpleNamespace

from harness.patches import by_id
from harness.seams import recorded
from tests.unit.patches.contract import Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "layer-order"


def test_order_and_repetition_are_the_callers() -> None:
    module = generator(recorded("0.16.0"))
    module.VllmHiddenStatesGenerator.generate = lambda self, ids: [
        {"hidden_states": ["one", "three", "five"]} for _ in ids
    ]
    by_id("layer-order").apply(handed(module))
    generate = module.VllmHiddenStatesGenerator.generate
    results = generate(SimpleNamespace(layer_ids=[5, 1, 3, 1]), [[1], [2]])
    assert [result["hidden_states"] for result in results] == [["five", "one", "three", "one"]] * 2
