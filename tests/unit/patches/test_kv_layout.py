"""The layout is decided when the workers are up, and they are told."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.patches import by_id
from harness.seams import Entry, recorded
from tests.unit.patches.contract import Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "kv-layout"
    broken_by = (("executor.kv-layout", Entry("function", signature="()")),)


UTILS = "vllm.v1.attention.backends.utils"


def test_workers_are_asked_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    utils = ModuleType(UTILS)
    utils.resolve_kv_cache_layout = lambda config, layouts: SimpleNamespace(  # type: ignore[attr-defined]
        name=layouts[0][0]
    )
    monkeypatch.setitem(sys.modules, UTILS, utils)
    module = generator(recorded("0.32.0"))
    executor = module.MultiprocExecutor

    def init(self: Any, vllm_config: Any) -> None:
        self.vllm_config = vllm_config

    executor.__init__ = init
    executor.get_supported_kv_cache_layouts = lambda self: [["LBNHC"]]
    executor.set_kv_cache_layout = lambda self, name: told.append(name)
    by_id("kv-layout").apply(handed(module))
    module.MultiprocExecutor(vllm_config=None)
    assert told == ["LBNHC"]


def test_a_release_without_one_is_started_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, UTILS, ModuleType(UTILS))
    module = generator(recorded("0.16.0"))
    by_id("kv-layout").apply(handed(module))
    module.MultiprocExecutor()
