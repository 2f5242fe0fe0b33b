"""How prompts are handed over: at once as many as make the wait for the last files small."""

from __future__ import annotations

import pytest

from harness.dataset.prompt_set import PromptLimits, PromptSet
from harness.dataset.prompts import prompts_of
from harness.extraction.run import batch_tokens, batches
from harness.host.wire import MAX_MESSAGE_BYTES

LONGEST_ID = len("163839, ")


def prompts(*lengths: int) -> PromptSet:
    limits = PromptLimits(vocab_size=10, max_tokens=100)
    return prompts_of([[1] * length for length in lengths], limits=limits)


@pytest.mark.parametrize(("budget", "tokens"), [(8192, 524_288), (2048, 131_072)])
def test_64_steps_are_handed_over_at_once(budget: int, tokens: int) -> None:
    assert batch_tokens(budget) == tokens


def test_a_batch_of_the_largest_budget_fits_into_one_message() -> None:
    assert batch_tokens(1 << 20) * LONGEST_ID < MAX_MESSAGE_BYTES


def test_batches_keep_order_and_hold_no_more_tokens_than_asked() -> None:
    found = list(batches(prompts(40, 50, 20, 100, 1), [0, 1, 2, 3, 4], 90))
    assert found == [[0, 1], [2], [3], [4]]


def test_a_batch_has_at_most_1024_prompts() -> None:
    many = prompts(*[1] * 1030)
    assert [len(one) for one in batches(many, range(1030), 10_000)] == [1024, 6]
