"""Asynchronous scheduling is turned off before vLLM decides, and seen to be off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import Refused
from harness.patches import Status, by_id
from harness.seams import Entry, recorded
from tests.unit.patches.contract import Contract, with_probe
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "async-scheduling"
    broken_by = (("config.vllm", Entry("class", signature="(everything)")),)


OTHERS = ("model_config", "cache_config", "parallel_config", "device_config", "load_config")


def config(module: Any, scheduler: Any) -> Any:
    return module.VllmConfig(scheduler_config=scheduler, **dict.fromkeys(OTHERS))


def test_the_configuration_is_made_with_it_off() -> None:
    module = generator(recorded("0.16.0"))
    by_id("async-scheduling").apply(handed(module))
    scheduler = SimpleNamespace(async_scheduling=None)
    assert config(module, scheduler).scheduler_config is scheduler
    assert scheduler.async_scheduling is False


def test_a_release_that_turns_it_on_all_the_same_is_refused() -> None:
    module = generator(recorded("0.16.0"))
    original = module.VllmConfig

    def stubborn(**keywords: Any) -> Any:
        keywords["scheduler_config"].async_scheduling = True
        return original(**keywords)

    stubborn.__signature__ = original.__signature__  # type: ignore[attr-defined]
    module.VllmConfig = stubborn  # type: ignore[attr-defined]
    by_id("async-scheduling").apply(handed(module))
    with pytest.raises(Refused, match=r"patches\.async-scheduling"):
        config(module, SimpleNamespace(async_scheduling=None))
    with pytest.raises(Refused, match="has no async_scheduling"):
        config(module, SimpleNamespace())


def test_a_default_that_nobody_knows_is_broken() -> None:
    surface = with_probe(recorded("0.16.0"), "async-scheduling.default", "unknown")
    assert by_id("async-scheduling").state(surface).status is Status.BROKEN
