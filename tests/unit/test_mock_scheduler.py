"""Contracts of the mock's scheduler: cuts, reuse, preemption, and requests that end late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fixtures.mock_vllm import expected_rows, install, preempt
from tests.unit.mock_engines import Engine, prompt


@pytest.fixture(autouse=True)
def first_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")


def shares(planned: Any, *ids: str) -> list[int]:
    return [planned.num_scheduled_tokens.get(one, 0) for one in ids]


# Cuts


def test_prompts_are_cut_at_the_token_budget() -> None:
    with install("0.16.0"):
        engine = Engine(budget=64)
        ids = [engine.add(prompt(length)) for length in (40, 50, 200, 9)]
        steps = [shares(planned, *ids) for planned in engine.run()]
    assert steps[:2] == [[40, 24, 0, 0], [0, 26, 38, 0]]
    assert [sum(step) for step in steps] == [64, 64, 64, 64, 43, 0]


def test_a_long_prompt_is_cut_at_its_own_threshold() -> None:
    with install("0.16.0"):
        engine = Engine(budget=64, long_prefill_token_threshold=32)
        first, second = engine.add(prompt(40)), engine.add(prompt(9))
        assert shares(engine.step(), first, second) == [32, 9]


def test_no_more_requests_run_than_there_are_seats() -> None:
    with install("0.16.0"):
        engine = Engine(budget=512, seats=2)
        ids = [engine.add(prompt(5)) for _ in range(5)]
        assert [sum(map(bool, shares(planned, *ids))) for planned in engine.run()] == [2, 2, 1, 0]


def test_a_prompt_waits_for_its_whole_share_where_cutting_is_off() -> None:
    with install("0.16.0", platform="cpu"):
        engine = Engine(budget=64, reuse=True)
        engine.config.scheduler_config.enable_chunked_prefill = False
        engine.add(prompt(40))
        engine.run()
        first, second = engine.add(prompt(50, 1)), engine.add(prompt(60))
        assert shares(engine.step(), first, second) == [50, 0]
        # Its first two blocks are there already; they are looked up again.
        assert shares(engine.step(), first, second) == [0, 28]


# Order


def test_batch_order_is_not_the_order_of_scheduling_when_a_prefix_is_reused() -> None:
    with install("0.16.0", platform="cpu"):
        engine = Engine(budget=512, reuse=True)
        engine.add(prompt(64))
        engine.run()
        fresh, reusing = engine.add(prompt(40, 99)), engine.add(prompt(64))
        planned = engine.step()
        assert list(planned.num_scheduled_tokens) == [fresh, reusing]
        assert list(engine.runner().input_batch.req_ids) == [reusing, fresh]


def test_scrambling_turns_any_order_round() -> None:
    with install("0.16.0", scramble=True):
        engine = Engine(budget=512)
        ids = [engine.add(prompt(9, number)) for number in range(3)]
        engine.step()
        batch = engine.runner().input_batch
        assert list(batch.req_ids) == ids[::-1]
        assert batch.req_id_to_index == {one: 2 - number for number, one in enumerate(ids)}
        assert batch.num_reqs == 3


def test_the_last_one_moves_into_a_hole() -> None:
    with install("0.16.0"):
        engine = Engine(budget=512)
        engine.add(prompt(9))
        second, third = (engine.add(prompt(9), output=9) for _ in range(2))
        engine.step()
        planned = engine.step()
        assert list(planned.num_scheduled_tokens) == [second, third]
        assert list(engine.runner().input_batch.req_ids) == [third, second]


def test_newcomers_fill_holes_in_their_own_order() -> None:
    with install("0.16.0"):
        engine = Engine(budget=512)
        ended, going_on = engine.add(prompt(9)), engine.add(prompt(9), output=9)
        engine.step()
        newcomers = [engine.add(prompt(9)) for _ in range(2)]
        assert ended in engine.runner().requests
        engine.step()
        assert list(engine.runner().input_batch.req_ids) == [going_on, *newcomers]


def test_decodes_go_before_continued_prompts_and_these_before_new_ones() -> None:
    with install("0.16.0"):
        engine = Engine(budget=64)
        ended, cut = engine.add(prompt(9)), engine.add(prompt(70))
        engine.step()
        decoding = engine.add(prompt(9), output=9)
        engine.step()
        long = engine.add(prompt(100))
        engine.step()
        first, second = engine.add(prompt(9)), engine.add(prompt(9))
        engine.step()
        assert ended not in engine.runner().requests
        assert cut not in engine.runner().requests
        assert list(engine.runner().input_batch.req_ids) == [decoding, long, first, second]


# Ends


@pytest.mark.parametrize("release", ["0.11.0", "0.16.0", "0.32.0"])
def test_ended_requests_stay_with_the_worker_until_the_next_schedule(release: str) -> None:
    with install(release):
        engine = Engine()
        request_id = engine.add(prompt(9))
        engine.step()
        assert engine.scheduler.has_requests()
        assert list(engine.runner().requests) == [request_id]
        planned = engine.step()
        assert planned.finished_req_ids == {request_id}
        assert planned.total_num_scheduled_tokens == 0
        assert engine.runner().requests == {}
        assert not engine.scheduler.has_requests()


def test_aborted_requests_leak_if_the_last_schedule_is_dropped() -> None:
    with install("0.16.0"):
        from vllm.v1.request import RequestStatus

        engine = Engine(budget=16)
        cut = engine.add(prompt(20))
        engine.executor.execute_model(engine.scheduler.schedule())
        engine.executor.sample_tokens(None)
        engine.scheduler.finish_requests([cut], RequestStatus.FINISHED_ABORTED)
        dropped = engine.scheduler.schedule()
        assert dropped.total_num_scheduled_tokens == 0
        assert dropped.finished_req_ids == {cut}
        assert list(engine.runner().requests) == [cut]


def test_the_worker_shows_what_a_request_carries() -> None:
    with install("0.16.0"):
        engine = Engine()
        tokens = prompt(9)
        request_id = engine.add(tokens)
        engine.step()
        state = engine.runner().requests[request_id]
        assert (state.req_id, state.prompt_token_ids) == (request_id, tokens)
        assert state.num_computed_tokens == 0
        assert state.sampling_params.max_tokens == 1


# Preemption


@pytest.mark.parametrize("release", ["0.11.0", "0.16.0", "0.32.0"])
def test_a_preempted_request_starts_again_and_its_rows_are_right(release: str) -> None:
    with install(release):
        engine = Engine(budget=32)
        engine.watch(3)
        tokens, others = prompt(50, 1), prompt(90, 2)
        first, second = engine.add(tokens), engine.add(others)
        engine.step()
        preempt(engine.scheduler, first)
        assert shares(engine.step(), first, second) == [32, 0]
        steps = engine.run()
        assert sum(sum(shares(planned, first)) for planned in steps) == 50 - 32
        for request_id, ids in ((first, tokens), (second, others)):
            assert np.array_equal(engine.rows(request_id, 3), expected_rows(ids, 3))


def test_a_preempted_request_waits_a_step_while_others_run() -> None:
    with install("0.16.0"):
        engine = Engine(budget=64)
        first, second = (engine.add(prompt(10, number), output=9) for number in (1, 2))
        engine.step()
        preempt(engine.scheduler, first)
        assert shares(engine.step(), first, second) == [0, 1]
        assert list(engine.runner().input_batch.req_ids) == [second]
        assert set(engine.runner().requests) == {first, second}
        back = engine.step()
        # The prompt and the one token of output: all of it is computed again.
        assert shares(back, first, second) == [11, 1]
        assert back.scheduled_cached_reqs.resumed_req_ids == {first}
        assert back.scheduled_new_reqs == []
        engine.run()
        assert engine.runner().requests == {}


# Reuse


def test_prefixes_are_reused_inside_one_step() -> None:
    with install("0.16.0", platform="cpu"):
        engine = Engine(budget=512, reuse=True)
        base = prompt(96)
        first, second = engine.add(base + prompt(10, 1)), engine.add(base + prompt(20, 2))
        assert shares(engine.step(), first, second) == [106, 20]


def test_the_last_block_of_an_identical_prompt_is_computed() -> None:
    with install("0.16.0", platform="cpu"):
        engine = Engine(budget=512, reuse=True)
        first, second = engine.add(prompt(64)), engine.add(prompt(64))
        assert shares(engine.step(), first, second) == [64, 16]


def test_nothing_is_reused_when_reuse_is_off() -> None:
    with install("0.16.0"):
        engine = Engine(budget=512)
        first, second = engine.add(prompt(64)), engine.add(prompt(64))
        assert shares(engine.step(), first, second) == [64, 64]


@pytest.mark.parametrize(
    ("release", "kind", "text"),
    [
        ("0.16.0", AssertionError, ""),
        ("0.25.1", AssertionError, ""),
        ("0.26.0", IndexError, "list index out of range"),
        ("0.32.0", IndexError, "list index out of range"),
    ],
)
def test_reuse_needs_hashes_once_a_prompt_fills_a_block(
    release: str, kind: type[Exception], text: str
) -> None:
    with install(release, platform="cpu"):
        engine = Engine(reuse=True)
        engine.add(prompt(15), hashed=False)
        engine.step()
        engine.add(prompt(16), hashed=False)
        with pytest.raises(kind) as refusal:
            engine.scheduler.schedule()
    assert str(refusal.value) == text


def test_hashes_need_the_none_hash_first() -> None:
    with install("0.16.0", platform="cpu"):
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher

        engine = Engine(reuse=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "hasher", lambda: get_request_block_hasher(16, repr))
            with pytest.raises(NameError, match="name 'NONE_HASH' is not defined"):
                engine.add(prompt(20))


def test_a_block_size_that_is_not_the_workers_is_refused_under_reuse() -> None:
    with install("0.16.0"):
        from vllm.v1.core.sched.scheduler import Scheduler

        engine = Engine(reuse=True)
        assert engine.block_size == 64
        with pytest.raises(AssertionError, match="hash_block_size == block_size"):
            Scheduler(engine.config, engine.kv_configs[0], None, 16)
