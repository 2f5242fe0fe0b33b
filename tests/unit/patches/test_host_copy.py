"""Rows leave the worker from the host."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness.errors import Refused
from harness.patches import by_id
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import extension, handed


class TestContract(Contract):
    id = "host-copy"
    broken_by = (("executor.collective_rpc", GONE),)


def test_every_tensor_is_copied_and_nothing_stays_nothing() -> None:
    module = extension()
    by_id("host-copy").apply(handed(module))
    worker = module.HiddenStatesWorkerExtension()
    worker.model_runner = SimpleNamespace(use_async_scheduling=False)
    assert worker._get_captured_states() is None
    worker._captured_states = [SimpleNamespace(cpu=lambda: "on the host")]
    assert worker._get_captured_states() == ["on the host"]


def test_asynchronous_scheduling_in_the_worker_is_refused() -> None:
    module = extension()
    by_id("host-copy").apply(handed(module))
    worker = module.HiddenStatesWorkerExtension()
    worker.model_runner = SimpleNamespace(use_async_scheduling=True)
    with pytest.raises(Refused, match=r"patches\.async-scheduling"):
        worker._get_captured_states()
