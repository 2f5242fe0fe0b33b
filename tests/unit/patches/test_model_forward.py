"""The model's own forward runs, and rows are taken where layers hand them on."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import pytest

from harness.errors import CheckFailed
from harness.patches import by_id
from harness.seams import Entry
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import extension, handed


class TestContract(Contract):
    id = "model-forward"
    broken_by = (
        ("deepseek.model.embed", GONE),
        ("deepseek.model.forward", Entry("method", signature="(batch)")),
    )


class Layer:
    """Adds its number to the hidden states; hands them on with a residual of 100."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.hooks: list[Callable[..., None]] = []

    def register_forward_hook(self, hook: Callable[..., None]) -> Any:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def __call__(self, hidden: Any) -> Any:
        output: Any = (hidden + self.number, 100)
        for hook in self.hooks:
            hook(self, (), output)
        return output


class Model:
    """Embeds and scales as no other release does."""

    start_layer, end_layer = 0, 4

    def __init__(self, layer_ids: set[int]) -> None:
        self.layers = [Layer(number) for number in range(4)]
        self.stored: list[Any] = []
        self._extension = SimpleNamespace(
            _layer_ids=frozenset(layer_ids), _store_captured_states=self.stored.append
        )

    def forward(self, ids: Any, positions: Any, tensors: Any, embeds: Any, **extra: Any) -> Any:
        hidden = 1000 * ids
        for layer in self.layers:
            hidden, _ = layer(hidden)
        return hidden, extra


def patched(model: Any, rank: int = 0) -> Any:
    module = extension()
    module.rank = SimpleNamespace(rank_in_group=rank)  # type: ignore[attr-defined]
    by_id("model-forward").apply(handed(module))
    return MethodType(module._patched_forward, model)


def test_rows_are_the_sums_that_the_chosen_layers_hand_on_in_ascending_order() -> None:
    model = Model({3, 1})
    assert patched(model)(1, None, extra=5) == (1006, {"extra": 5})
    assert model.stored == [[1101, 1106]]
    assert [layer.hooks for layer in model.layers] == [[]] * 4


def test_other_ranks_capture_nothing() -> None:
    model = Model({1})
    patched(model, rank=1)(1, None)
    assert model.stored == []


def test_a_layer_that_hands_on_something_else_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model({0})
    monkeypatch.setattr(
        Layer, "__call__", lambda self, hidden: [hook(self, (), hidden) for hook in self.hooks]
    )
    with pytest.raises(CheckFailed, match="layer 0"):
        patched(model)(1, None)
    assert model.layers[0].hooks == []
