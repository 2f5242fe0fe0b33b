"""Free memory is the least of the workers', on their own devices."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.patches import by_id
from harness.patches.worker.free_memory import free_memory
from harness.seams import recorded
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "device-memory"
    broken_by = (("executor.collective_rpc", GONE),)


def test_the_worker_with_least_free_decides() -> None:
    module = generator(recorded("0.16.0"))
    by_id("device-memory").apply(handed(module))
    assert module.torch.cuda.mem_get_info() == (1, 2)
    asked: list[Any] = []

    def rpc(method: Any) -> list[tuple[int, int]]:
        asked.append(method)
        return [(70, 80), (30, 80)]

    made = module.VllmHiddenStatesGenerator()
    made.executor = SimpleNamespace(collective_rpc=rpc)
    assert made._setup_capture() == "set up"
    assert asked == [free_memory]
    assert module.torch.cuda.mem_get_info() == (30, 80)
    assert module.torch.long == "long"
    assert module.torch.cuda.is_available() is False
    module.torch.cuda.empty_cache()
    by_id("device-memory").undo(handed(module))
    assert module.torch.cuda.mem_get_info() == (1, 2)
    # What these workers said is not told of the next ones.
    other = generator(recorded("0.16.0"))
    by_id("device-memory").apply(handed(other))
    assert other.torch.cuda.mem_get_info() == (1, 2)
    by_id("device-memory").undo(handed(other))


def worker(device: Any, **cache: Any) -> Any:
    config = SimpleNamespace(cache_config=SimpleNamespace(**cache))
    return SimpleNamespace(device=device, vllm_config=config)


def test_a_cpu_worker_answers_with_its_setting() -> None:
    assert free_memory(worker(None, cpu_kvcache_space_bytes=7)) == (7, 7)
    assert free_memory(worker(SimpleNamespace(type="cpu"), kv_cache_memory_bytes=9)) == (9, 9)
    free, total = free_memory(worker(None))
    assert 0 < free <= total


def test_a_gpu_worker_answers_for_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        mem_get_info=lambda device: (device.index * 10, 100)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert free_memory(worker(SimpleNamespace(type="cuda", index=3))) == (30, 100)
