"""Rows of a real engine against Hugging Face transformers, float32, wrapper architecture.

Each test runs on every capture that ``wrapper_engine`` offers.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness.capture.session import EngineSession
from harness.oracles.reference import ReferenceHost
from tests.engine._support import assert_parity, capture, held, reports

pytestmark = pytest.mark.engine

TOKENS = 250  # byte tokens of the tiny tokenizer; special ids lie above


def ids(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(TOKENS) for _ in range(length)]


def test_the_engine_captures_in_the_callers_order_and_adds_the_last_depth(
    wrapper_engine: EngineSession,
) -> None:
    plan = wrapper_engine.spec.plan
    assert plan is not None
    assert plan.depths == (4, 1, 3, 6)
    (rows,) = capture(wrapper_engine, [ids(9, 0)])
    assert rows.shape == (9, 4, 128)
    assert wrapper_engine.loads == 1


def test_native_rows_alone_are_written_to_a_cache_and_as_whole_words(
    wrapper_engine: EngineSession,
) -> None:
    log = (wrapper_engine.spec.spool.parent / "engine.log").read_text()
    written = "hidden states are written to the cache as whole words" in log
    assert written is (wrapper_engine.name == "native")


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 255])
def test_every_row_equals_the_reference_at_this_length(
    wrapper_engine: EngineSession, reference: ReferenceHost, length: int
) -> None:
    # A single tie in the reference would prove nothing: three prompts of the length.
    prompts = [ids(length, 100 * length + number) for number in range(3)]
    assert_parity(reports(wrapper_engine, reference, prompts), most_aside=0.34)


def test_a_batch_of_40_mixed_prompts_keeps_rows_apart(
    wrapper_engine: EngineSession, reference: ReferenceHost
) -> None:
    draw = random.Random(7)
    prompts = [ids(draw.randrange(1, 120), 1000 + number) for number in range(40)]
    assert_parity(reports(wrapper_engine, reference, prompts))


def test_prompts_with_a_long_shared_prefix_return_all_their_rows(
    wrapper_engine: EngineSession, reference: ReferenceHost
) -> None:
    shared = ids(96, 5)
    prompts = [shared + ids(extra, 50 + extra) for extra in (1, 7, 20, 33)] + [shared[:64], shared]
    assert_parity(reports(wrapper_engine, reference, prompts))
    # Once more: now every block of the prefix has been seen before.
    assert_parity(reports(wrapper_engine, reference, prompts))


def test_identical_prompts_in_one_batch_return_identical_rows(
    wrapper_engine: EngineSession,
) -> None:
    prompt = ids(64, 3)
    first, second, third = capture(wrapper_engine, [prompt, ids(50, 4), prompt])
    np.testing.assert_allclose(first, third, rtol=0, atol=1e-4)
    assert first.shape != second.shape


def test_repeated_prompt_returns_its_own_rows(
    wrapper_engine: EngineSession, reference: ReferenceHost
) -> None:
    prompts = [ids(48, 11), ids(20, 12)]
    for _ in range(3):
        assert_parity(reports(wrapper_engine, reference, prompts))


def test_shuffled_prompts_keep_their_rows(
    wrapper_engine: EngineSession, reference: ReferenceHost
) -> None:
    prompts = [ids(length, 300 + length) for length in (5, 90, 1, 33, 17, 64, 200)]
    random.Random(1).shuffle(prompts)
    assert_parity(reports(wrapper_engine, reference, prompts))


def test_fifty_calls_stay_right_and_leave_nothing_behind(
    wrapper_engine: EngineSession, reference: ReferenceHost
) -> None:
    prompts = [ids(length, 700 + length) for length in (40, 9, 70)]
    # The first calls take 10 MB once (threads, buffers); 400 calls more took 0.6 MB.
    for _ in range(10):
        capture(wrapper_engine, prompts)
    first = held(wrapper_engine)
    for _ in range(49):
        capture(wrapper_engine, prompts)
    assert_parity(reports(wrapper_engine, reference, prompts))
    last = held(wrapper_engine)
    assert [worker["requests"] for worker in last] == [0] * len(last)
    assert all(not worker.get("partial") and not worker.get("done") for worker in last)
    # Pages that an allocator keeps come and go; 50 kept samples would be 12 MB.
    grown = [b["rss_kb"] - a["rss_kb"] for a, b in zip(first, last, strict=True)]
    assert max(grown) < 4 * 1024, grown


PROMPT = st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=80)
BATCH = st.lists(PROMPT, min_size=1, max_size=8)
GIVEN = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    # Shrinking would send hundreds of batches through the engine.
    "phases": (Phase.explicit, Phase.generate),
    "database": None,
}


def _hold(
    wrapper_engine: EngineSession,
    reference: ReferenceHost,
    batches: list[list[list[int]]],
) -> tuple[int, int]:
    found = [report for batch in batches for report in reports(wrapper_engine, reference, batch)]
    faults = [report.explain() for report in found if report.status == "failed"]
    assert not faults, "\n".join(faults)
    return len(found), sum(report.set_aside for report in found)


def test_200_random_prompts_equal_the_reference(
    wrapper_engine: EngineSession, reference: ReferenceHost
) -> None:
    seen = [0, 0]

    @settings(max_examples=70, derandomize=True, **GIVEN)  # type: ignore[arg-type]
    @given(batch=BATCH)
    def run(batch: list[list[int]]) -> None:
        total, aside = _hold(wrapper_engine, reference, [batch])
        seen[0] += total
        seen[1] += aside

    run()
    assert seen[0] >= 200
    assert seen[1] <= 0.05 * seen[0], f"{seen[1]} of {seen[0]} prompts set aside"


@pytest.mark.slow
def test_3000_random_prompts_of_a_fresh_seed_equal_the_reference(
    wrapper_engine: EngineSession, reference: ReferenceHost
) -> None:
    seen = [0, 0]

    @settings(max_examples=800, **GIVEN)  # type: ignore[arg-type]
    @given(batch=BATCH)
    def run(batch: list[list[int]]) -> None:
        total, aside = _hold(wrapper_engine, reference, [batch])
        seen[0] += total
        seen[1] += aside

    run()
    assert seen[0] >= 3000
    assert seen[1] <= 0.05 * seen[0], f"{seen[1]} of {seen[0]} prompts set aside"
