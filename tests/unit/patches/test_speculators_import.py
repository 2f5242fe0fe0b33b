"""torch stands where pydantic looks for it."""

from __future__ import annotations

import sys

import pytest

from harness.patches import Status, by_id
from tests.unit.patches.contract import Contract
from tests.unit.patches.fakes import handed, libraries


class TestContract(Contract):
    id = "speculators-import"

    @pytest.fixture(autouse=True)
    def _libraries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        libraries(monkeypatch)


def test_torch_is_there_for_transformers_5(monkeypatch: pytest.MonkeyPatch) -> None:
    module = libraries(monkeypatch)
    assert by_id("speculators-import").apply(handed(module)).status is Status.IN_FORCE
    assert module.torch is sys.modules["torch"]


def test_transformers_4_and_a_module_that_has_it_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = libraries(monkeypatch, version=4)
    assert by_id("speculators-import").apply(handed(module)).status is Status.OBSOLETE
    assert not hasattr(module, "torch")
    module = libraries(monkeypatch)
    module.torch = torch = object()  # type: ignore[attr-defined]
    assert by_id("speculators-import").apply(handed(module)).status is Status.OBSOLETE
    assert module.torch is torch
