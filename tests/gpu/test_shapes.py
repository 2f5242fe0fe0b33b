"""The shapes of the story: 512 tokens, four depths, the model's width, bfloat16, each in its place.

Pinned: every size, and that tokens, columns and width are three different numbers, so that a
transposed sample cannot pass; the order of the columns; one load a session.
"""

from __future__ import annotations

import numpy as np
import pytest

from harness.plugin.engine import Engine
from harness.plugin.sample import Sample

pytestmark = [pytest.mark.gpu, pytest.mark.engine]
TOKENS = 512


@pytest.fixture(scope="module")
def sample(engine: Engine) -> Sample:
    if engine.plan.session.max_prompt_tokens < TOKENS:
        pytest.skip(f"--hs-max-model-len leaves no room for {TOKENS} tokens")
    random = np.random.default_rng(7)
    ids = random.integers(0, engine.plan.session.vocab_size // 2, TOKENS).tolist()
    (found,) = engine.hidden_states([ids])
    assert found.token_ids.tolist() == ids
    return found


def test_each_depth_of_512_tokens_is_512_rows_of_the_models_width(
    engine: Engine, sample: Sample
) -> None:
    width = engine.plan.model.hidden_size
    assert sample.stored.shape == (TOKENS, len(engine.depths), width)
    assert len({*sample.stored.shape}) == 3
    for depth in engine.depths:
        assert sample.at(depth).shape == (TOKENS, width)


def test_values_are_stored_in_the_models_dtype(engine: Engine, sample: Sample) -> None:
    assert sample.dtype == engine.plan.dtype
    assert sample.stored.dtype == (np.uint16 if sample.dtype == "bfloat16" else np.float32)
    tensor = sample.to_torch()
    assert str(tensor.dtype) == f"torch.{sample.dtype}"
    assert tuple(tensor.shape) == sample.stored.shape


def test_columns_are_the_asked_depths_in_their_order_and_the_last_one_is_the_models(
    engine: Engine, sample: Sample
) -> None:
    assert sample.depths == engine.depths
    assert len(set(sample.depths)) == len(sample.depths)
    assert sample.depths[-1] == engine.plan.model.num_layers


def test_the_stream_grows_from_depth_to_depth(sample: Sample) -> None:
    rows = sample.hidden_states
    assert np.isfinite(rows).all()
    for a in range(rows.shape[1]):
        for b in range(a):
            change = np.linalg.norm(rows[:, a] - rows[:, b], axis=-1)
            assert (change / np.linalg.norm(rows[:, b], axis=-1) > 1e-3).all(), (a, b)


def test_one_load_serves_the_session(engine: Engine) -> None:
    leased = engine.lease
    assert engine.loads == (0 if leased else 1)
    assert engine.proved
