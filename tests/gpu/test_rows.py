"""Rows do not depend on what else was in the batch, on its order, or on where it was cut.

Pinned: each comparison below stays under a bound that was measured (``fixtures/evidence``,
``noise``), and a prompt of another text is far over it. An expert kernel adds in no fixed order and
a batch of another shape takes another tile, so bits may differ behind the first expert layer; a
row of another token, prompt or layer is 10 to 100 times as far away.

Only depths that tell prompts apart are judged, and the figures of all are told. Random weights
let a few rows outgrow the others: in a slice of 16 layers a sample of another prompt is 1.41 away
at depth 2, 0.40 at depth 8 and 0.15 at depth 16, where a repeated call gives 0.03.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from harness.plugin.engine import Engine
from tests.gpu.conftest import Figures
from tests.noise import Rows, bound_of, noise
from tests.noise import figures as by_depth

pytestmark = [pytest.mark.gpu, pytest.mark.engine]

# Another prompt, norm of the difference over the norm of a whole sample.
FAR = 0.5


def rows_of(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[Rows]:
    return [sample.hidden_states for sample in engine.hidden_states(prompts)]


def draw(engine: Engine, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    top = engine.plan.session.vocab_size // 2  # special ids sit in the upper half
    longest = engine.plan.session.max_prompt_tokens
    return [random.integers(0, top, min(length, longest)).tolist() for length in lengths]


Judge = Callable[[str, list[tuple[Rows, Rows]]], None]


@pytest.fixture
def judge(engine: Engine, telling: dict[int, float], figures: Figures) -> Judge:
    """Tells the noise of some pairs and holds that of the telling depths to their bounds."""
    hidden = engine.plan.model.hidden_size
    bounds = {depth: bound_of(another, hidden) for depth, another in telling.items()}

    def hold(name: str, pairs: list[tuple[Rows, Rows]]) -> None:
        found = noise(pairs, engine.depths)
        told = {depth: bound.to_json() for depth, bound in bounds.items()}
        figures(noise=name, depths=by_depth(found), judged=told)
        judged = [one for one in found if one.depth in bounds]
        assert judged
        assert all(one.within(bounds[one.depth]) for one in judged), judged

    return hold


@pytest.fixture(scope="module")
def telling(engine: Engine, prompts: list[list[int]], alone: list[Rows]) -> dict[int, float]:
    """The depths at which another prompt of one length is far away, and how far."""
    assert len(prompts[0]) == len(prompts[4])
    found = noise([(alone[0], alone[4])], engine.depths)
    return {one.depth: one.sample for one in found if one.sample > FAR}


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[list[int]]:
    return draw(engine, (512, 33, 129, 1, 512, 16, 257, 17))


@pytest.fixture(scope="module")
def alone(engine: Engine, prompts: list[list[int]]) -> list[Rows]:
    return [rows_of(engine, [prompt])[0] for prompt in prompts]


def test_a_prompt_alone_gives_the_same_rows_again(
    engine: Engine, prompts: list[list[int]], alone: list[Rows], judge: Judge
) -> None:
    again = [rows_of(engine, [prompt])[0] for prompt in prompts]
    judge("repeated alone", list(zip(alone, again, strict=True)))


def test_a_batch_gives_each_prompt_its_own_rows(
    engine: Engine, prompts: list[list[int]], alone: list[Rows], judge: Judge
) -> None:
    judge("in a batch", list(zip(alone, rows_of(engine, prompts), strict=True)))


def test_a_shuffled_batch_gives_each_prompt_its_own_rows(
    engine: Engine, prompts: list[list[int]], alone: list[Rows], judge: Judge
) -> None:
    order = np.random.default_rng(2).permutation(len(prompts)).tolist()
    shuffled = rows_of(engine, [prompts[index] for index in order])
    pairs = [(alone[index], rows) for index, rows in zip(order, shuffled, strict=True)]
    judge("shuffled", pairs)


def test_repeated_calls_give_the_same_rows(
    engine: Engine, prompts: list[list[int]], judge: Judge
) -> None:
    first, *others = [rows_of(engine, prompts) for _ in range(4)]
    judge(
        "repeated batch",
        [pair for rows in others for pair in zip(first, rows, strict=True)],
    )


def test_prompts_cut_by_the_token_budget_have_the_rows_of_uncut_ones(
    engine: Engine, judge: Judge
) -> None:
    budget, longest = engine.plan.session.token_budget, engine.plan.session.max_prompt_tokens
    length = min(longest, 300)
    count = 2 * budget // length + 3  # no multiple of the budget: some prompt lies across a cut
    many = draw(engine, [length] * count, seed=3)
    assert budget % length
    together = rows_of(engine, many)
    # Those at the first two cuts, and one that is in no way special.
    chosen = sorted({budget // length, 2 * budget // length, 0})
    pairs = [(rows_of(engine, [many[index]])[0], together[index]) for index in chosen]
    judge("cut", pairs)


def test_as_few_tokens_as_ranks_and_one_more_are_right(engine: Engine, judge: Judge) -> None:
    ranks = engine.plan.options.tensor_parallel_size
    whole = draw(engine, [ranks + 1])[0]
    lengths = sorted({1, max(1, ranks - 1), ranks, ranks + 1})
    long = rows_of(engine, [whole])[0]
    short = rows_of(engine, [whole[:length] for length in lengths])
    # Attention is causal: the rows of a beginning are the beginning of the rows.
    judge("few tokens", [(long[: len(rows)], rows) for rows in short])


def test_a_shared_beginning_is_computed_and_not_left_out(engine: Engine, judge: Judge) -> None:
    base = draw(engine, [256], seed=4)[0]
    first = rows_of(engine, [base])[0]
    again, longer = rows_of(engine, [base, base + draw(engine, [40], seed=5)[0]])
    assert len(longer) == 296
    judge("shared beginning", [(first, again), (first, longer[:256])])


def test_rows_of_another_prompt_are_far_away(
    engine: Engine, telling: dict[int, float], alone: list[Rows], figures: Figures
) -> None:
    found = noise([(alone[0], alone[4])], engine.depths)
    figures(noise="another prompt", depths=by_depth(found), judged=sorted(telling))
    assert engine.depths[0] in telling, found


def test_rows_shifted_by_one_token_are_far_away(
    engine: Engine, telling: dict[int, float], alone: list[Rows]
) -> None:
    found = noise([(alone[0][1:], alone[0][:-1])], engine.depths)
    near = [one for one in found if one.depth in telling and one.sample <= FAR]
    assert near == []
