"""The scheduler gets the block size that the workers resolved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import Refused
from harness.patches import by_id
from harness.seams import Entry
from tests.unit.patches.contract import Contract
from tests.unit.patches.fakes import handed


class TestContract(Contract):
    id = "scheduler-block-size"
    broken_by = (("scheduler", Entry("class", signature="(config, block_size)")),)


class Recorded:
    """A scheduler that keeps what it was given."""

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        structured_output_manager: Any,
        block_size: int,
    ) -> None:
        self.block_size = block_size


def made(sizes: tuple[int, ...], *, asked: int | None = 16, **ranks: int) -> tuple[int, Any]:
    module = SimpleNamespace(__name__="m", Scheduler=Recorded)
    module.__dict__["Scheduler"] = Recorded
    patch = by_id("scheduler-block-size")
    groups = [SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=size)) for size in sizes]
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=asked), parallel_config=SimpleNamespace(**ranks)
    )
    module.__name__ = patch.module
    patch.apply(handed(module))  # type: ignore[arg-type]
    scheduler = module.Scheduler(
        vllm_config=config,
        kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
        structured_output_manager=None,
    )
    patch.undo(handed(module))  # type: ignore[arg-type]
    assert module.Scheduler is Recorded
    return scheduler.block_size, config


def test_the_workers_size_counts_and_not_the_one_asked_for() -> None:
    size, config = made((64,), asked=16)
    assert (size, config.cache_config.block_size) == (64, 64)
    assert made((128,), asked=None)[0] == 128


def test_context_parallel_ranks_share_a_block() -> None:
    ranks = {"decode_context_parallel_size": 2, "prefill_context_parallel_size": 3}
    assert made((16, 16), **ranks)[0] == 96


def test_layers_of_several_sizes_are_refused() -> None:
    with pytest.raises(Refused, match="16, 32"):
        made((16, 32))
