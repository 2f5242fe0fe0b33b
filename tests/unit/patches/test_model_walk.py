"""The layers inside a wrapper are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import Refused
from harness.patches import by_id
from tests.unit.patches.contract import Contract
from tests.unit.patches.fakes import extension, handed


class TestContract(Contract):
    id = "model-walk"


BASE = SimpleNamespace(layers=[], norm=None, start_layer=0, end_layer=0)


def set_up(model: Any) -> Any:
    module = extension()
    module.supports_eagle3 = lambda model: True  # type: ignore[attr-defined]
    by_id("model-walk").apply(handed(module))
    worker = module.HiddenStatesWorkerExtension()
    worker.model_runner = SimpleNamespace(model=model)
    worker._setup_hidden_states_capture([1])
    return worker.base


def test_the_inner_model_is_set_up_and_the_wrapper_stays_as_it_was() -> None:
    wrapper = SimpleNamespace(language_model=SimpleNamespace(model=BASE))
    assert set_up(wrapper) is BASE
    assert not hasattr(wrapper, "model")


def test_a_plain_model_is_set_up_as_before() -> None:
    plain = SimpleNamespace(model=BASE)
    assert set_up(plain) is BASE
    assert plain.model is BASE


def test_a_model_without_layers_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="SimpleNamespace"):
        set_up(SimpleNamespace(model=SimpleNamespace()))
