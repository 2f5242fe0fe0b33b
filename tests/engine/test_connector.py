"""Bookkeeping of our connector, without an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from harness.inside import connector

pytestmark = pytest.mark.engine


@pytest.fixture
def worker_side(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A connector of a worker that does not write, beside a base that reports all as 0.26 does."""
    base: Any = connector.stock.ExampleHiddenStatesConnector
    monkeypatch.setattr(base, "get_finished", lambda self, finished: (set(finished), None))
    made: Any = object.__new__(connector.SpoolConnector)
    made._to_report, made._spool, made._is_tp_rank_zero = set(), None, False
    return made


def test_a_request_that_asked_for_no_save_is_not_reported_as_sent(worker_side: Any) -> None:
    worker_side._submit_async_write(SimpleNamespace(req_id="saved"))
    assert worker_side.get_finished({"saved", "plain"}) == ({"saved"}, None)


def test_a_saved_request_is_reported_once(worker_side: Any) -> None:
    worker_side._submit_async_write(SimpleNamespace(req_id="saved"))
    worker_side.get_finished({"saved"})
    assert worker_side.get_finished({"saved"}) == (None, None)
