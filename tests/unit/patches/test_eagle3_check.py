"""Every model with decoder layers is taken."""

from __future__ import annotations

from types import SimpleNamespace

from harness.patches import Status, by_id
from harness.seams import recorded
from tests.unit.patches.contract import Contract, with_probe
from tests.unit.patches.fakes import extension, handed


class TestContract(Contract):
    id = "eagle3-check"
    newest = "0.17.1"


BASE = SimpleNamespace(layers=[], norm=None, start_layer=0, end_layer=0)


def test_what_has_layers_inside_is_taken_and_what_has_none_is_not() -> None:
    module = extension()
    by_id("eagle3-check").apply(handed(module))
    assert module.supports_eagle3(SimpleNamespace(model=BASE))
    assert module.supports_eagle3(SimpleNamespace(language_model=SimpleNamespace(model=BASE)))
    # vLLM 0.15.0 held the inner model there.
    assert module.supports_eagle3(SimpleNamespace(language_model=BASE))
    assert not module.supports_eagle3(SimpleNamespace(model=SimpleNamespace(layers=[])))


def test_classes_of_a_shape_not_known_are_broken() -> None:
    surface = with_probe(recorded("0.17.1"), "kimi.supports-eagle3", "unknown")
    assert by_id("eagle3-check").state(surface).status is Status.BROKEN
