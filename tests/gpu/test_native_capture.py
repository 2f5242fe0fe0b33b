"""Native capture on a GPU: what `pytest -m gpu` holds of whatever model it was given."""

from __future__ import annotations

import numpy as np
import pytest

from harness.plugin.engine import Engine

pytestmark = [pytest.mark.gpu, pytest.mark.engine]

LENGTHS = (1, 2, 15, 16, 17, 33, 129, 512)


def prompts(engine: Engine) -> list[list[int]]:
    draw = np.random.default_rng(0)
    top = engine.plan.session.vocab_size // 2  # special ids sit in the upper half
    longest = engine.plan.session.max_prompt_tokens
    return [draw.integers(0, top, min(length, longest)).tolist() for length in LENGTHS]


def test_the_engine_runs_on_the_gpu_in_every_worker(engine: Engine) -> None:
    workers = engine.loaded.workers
    assert [worker["device"] for worker in workers] == ["cuda"] * len(workers)
    assert len(workers) == engine.plan.options.tensor_parallel_size
    assert engine.proved


def test_samples_have_the_models_width_depths_and_dtype(engine: Engine) -> None:
    sent = prompts(engine)
    for ids, sample in zip(sent, engine.hidden_states(sent), strict=True):
        assert sample.stored.shape == (len(ids), len(engine.depths), engine.plan.model.hidden_size)
        assert sample.dtype == engine.plan.dtype
        assert sample.token_ids.tolist() == ids
        assert sample.depths[-1] == engine.plan.model.num_layers


def test_every_prompt_rebuilds_the_engines_own_log_probabilities(engine: Engine) -> None:
    samples = engine.hidden_states(prompts(engine), check=True)
    assert all(sample.logprobs is not None for sample in samples)


def test_every_layer_changes_the_stream_and_each_row_differs(engine: Engine) -> None:
    sample = engine.hidden_states(prompts(engine))[-1]
    rows = sample.hidden_states
    assert np.isfinite(rows).all()
    for a in range(rows.shape[1]):
        for b in range(a):
            change = np.linalg.norm(rows[:, a] - rows[:, b], axis=-1)
            assert (change / np.linalg.norm(rows[:, b], axis=-1) > 1e-3).all()
    assert len(np.unique(rows[:, -1], axis=0)) == len(rows)


def test_the_same_prompt_alone_gives_the_same_rows(engine: Engine) -> None:
    # In a batch the engine starts with what has arrived, so a batch need not have one shape. And
    # the experts' kernels add in no fixed order: on an H200 at Kimi width rows differed by the
    # last bit behind the first expert layer, and were equal before it.
    prompt = [prompts(engine)[-1]]
    (first,), (second,) = engine.hidden_states(prompt), engine.hidden_states(prompt)
    for column, depth in enumerate(first.depths):
        one, two = first.hidden_states[:, column], second.hidden_states[:, column]
        error = np.linalg.norm(one - two) / np.linalg.norm(one)
        assert error <= (0.0 if depth <= 1 else 0.05), (depth, error)
