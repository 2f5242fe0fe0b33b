"""The layout is decided when the workers are up, and they are told."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.patches import by_id
from harness.seams import Entry, recorded
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import generator, handed, taking


class TestContract(Contract):
    id = "kv-layout"
    broken_by = (
        ("executor.kv-layout", Entry("function", signature="()")),
        ("executor.set_kv_cache_layout", Entry("method", signature="(layout_name, colour)")),
        ("executor.set_kv_cache_layout", GONE),
    )


UTILS = "vllm.v1.attention.backends.utils"


@pytest.mark.parametrize(
    ("release", "expected"), [("0.32.0", ("LBNHC",)), ("0.33.0", ("LBNHC", 4))]
)
def test_workers_are_asked_and_told_what_the_release_wants_to_know(
    release: str, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Any, ...]] = []
    utils = ModuleType(UTILS)
    utils.resolve_kv_cache_layout = lambda config, layouts: SimpleNamespace(  # type: ignore[attr-defined]
        name=layouts[0][0]
    )
    monkeypatch.setitem(sys.modules, UTILS, utils)
    module = generator(recorded(release))
    executor = module.MultiprocExecutor

    def init(self: Any, vllm_config: Any) -> None:
        self.vllm_config = vllm_config

    executor.__init__ = init
    executor.get_supported_kv_cache_layouts = lambda self: [["LBNHC"]]
    signature = recorded(release).entry("executor.set_kv_cache_layout").parsed()
    assert signature is not None
    taking_it = taking(signature, method=True)

    def tell(self: Any, *args: Any) -> None:
        told.append(tuple(vars(taking_it(self, *args)).values())[1:])

    tell.__signature__ = inspect.signature(taking_it)  # type: ignore[attr-defined]
    executor.set_kv_cache_layout = tell
    by_id("kv-layout").apply(handed(module))
    parallel = SimpleNamespace(cp_kv_cache_interleave_size=4)
    module.MultiprocExecutor(vllm_config=SimpleNamespace(parallel_config=parallel))
    assert told == [expected]


def test_a_release_without_one_is_started_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, UTILS, ModuleType(UTILS))
    module = generator(recorded("0.16.0"))
    by_id("kv-layout").apply(handed(module))
    module.MultiprocExecutor()
