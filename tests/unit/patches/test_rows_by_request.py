"""Rows are kept by request and position."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import CheckFailed, Refused
from harness.patches import by_id
from tests.unit.patches.contract import GONE, Contract
from tests.unit.patches.fakes import extension, handed


class TestContract(Contract):
    id = "rows-by-request"
    broken_by = (("input-batch.num_computed_tokens_cpu", GONE),)


class Worker:
    """A worker with the patched extension; rows are numbers: request * 100 + position."""

    def __init__(self, lengths: Sequence[int]) -> None:
        module = extension()
        by_id("rows-by-request").apply(handed(module))
        self.extension = module.HiddenStatesWorkerExtension()
        requests = {
            f"req_7_{number}": SimpleNamespace(prompt_token_ids=[0] * length)
            for number, length in enumerate(lengths)
        }
        self.runner: Any = SimpleNamespace(requests=requests, execute_model=self.forward)
        self.extension.model_runner = self.runner
        self.extension._reset_capture()

    def forward(self, step: Any) -> str:
        pieces = step.pieces
        self.runner.input_batch = SimpleNamespace(
            req_ids=[f"req_7_{number}" for number, _, _ in pieces],
            num_reqs=len(pieces),
            num_computed_tokens_cpu=[start for _, start, _ in pieces],
        )
        rows = [
            number * 100 + position
            for number, start, count in pieces
            for position in range(start, start + count)
        ]
        padded = rows + [-1] * step.padding
        self.extension._store_captured_states([padded, [1000 + row for row in padded]])
        return "done"

    def step(self, *pieces: tuple[int, int, int], padding: int = 0) -> None:
        """One step: (request, first position, tokens), in the order of the batch."""
        counts = {f"req_7_{number}": count for number, _, count in pieces}
        step = SimpleNamespace(pieces=pieces, num_scheduled_tokens=counts, padding=padding)
        assert self.runner.execute_model(step) == "done"

    def layer(self, number: int) -> list[int]:
        """One layer, put together as 0.3.0 does."""
        layers = list(self.extension._captured_states)
        return [row for piece in layers[number] for row in piece]


def wanted(*lengths: int) -> list[int]:
    return [request * 100 + row for request, length in enumerate(lengths) for row in range(length)]


def test_a_reordered_batch_comes_back_in_the_order_of_submission() -> None:
    worker = Worker([2, 3, 1])
    worker.step((2, 0, 1), (0, 0, 2), (1, 0, 3))
    assert worker.layer(0) == wanted(2, 3, 1)
    assert worker.layer(1) == [1000 + row for row in wanted(2, 3, 1)]


def test_chunks_are_put_together_and_padding_is_left_out() -> None:
    worker = Worker([2, 5, 2])
    worker.step((0, 0, 2), (1, 0, 1), padding=3)
    worker.step((2, 0, 1), (1, 1, 4))
    worker.step((2, 1, 1), padding=1)
    assert worker.layer(0) == wanted(2, 5, 2)


def test_more_than_ten_requests_are_ordered_by_number_and_not_by_name() -> None:
    worker = Worker([1] * 12)
    worker.step(*((number, 0, 1) for number in reversed(range(12))))
    assert worker.layer(0) == wanted(*[1] * 12)


def test_a_preempted_request_begins_again() -> None:
    worker = Worker([4])
    worker.step((0, 0, 2))
    worker.step((0, 0, 3))
    worker.step((0, 3, 1))
    assert worker.layer(0) == wanted(4)


def test_a_warm_up_is_not_captured() -> None:
    worker = Worker([1])
    worker.forward(SimpleNamespace(pieces=[(0, 0, 1)], padding=0))
    assert worker.extension._captured_states is None


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([[(0, 1, 2)]], "rows from 1 on"),
        ([[(0, 0, 2)]], "2"),
        ([[(0, 0, 1)], [(0, 2, 1)]], "rows from 2 on"),
        ([[(1, 0, 3)]], "req_7_1"),
    ],
)
def test_a_gap_is_an_error_and_never_a_row_too_few(
    steps: list[list[tuple[int, int, int]]], found: str
) -> None:
    worker = Worker([3, 3])
    for pieces in steps:
        worker.step(*pieces)
    with pytest.raises(CheckFailed, match=r"patches\.rows") as failed:
        worker.layer(0)
    assert found in failed.value.failure.found


def test_fewer_rows_than_tokens_are_an_error() -> None:
    worker = Worker([3])
    step = SimpleNamespace(pieces=[(0, 0, 2)], num_scheduled_tokens={"req_7_0": 3}, padding=0)
    with pytest.raises(CheckFailed, match="split over ranks"):
        worker.runner.execute_model(step)


def test_ids_of_another_form_are_an_error() -> None:
    worker = Worker([1])
    worker.runner.requests["a-name"] = worker.runner.requests["req_7_0"]
    worker.step((0, 0, 1))
    rows = worker.extension._captured_states
    rows.add([[7]], [("a-name", 0, 1, 1)], 1)
    with pytest.raises(CheckFailed, match="request ids"):
        list(rows)


def test_model_runner_v2_is_refused() -> None:
    module = extension()
    by_id("rows-by-request").apply(handed(module))
    worker = module.HiddenStatesWorkerExtension()
    worker.model_runner = type("Runner", (), {"__module__": "vllm.v1.worker.gpu.model_runner"})()
    with pytest.raises(Refused, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        worker._reset_capture()
    assert by_id("rows-by-request").environment == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
