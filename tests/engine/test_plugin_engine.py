"""The public fixtures on a real engine: their shapes; parity is tested beside this file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from harness.dataset.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.plugin.engine import Engine
    from harness.plugin.extraction import Extraction
    from harness.plugin.sample import Sample
    from harness.settings import Settings

pytestmark = pytest.mark.engine

PROMPTS = [[5, 6, 7, 8], [9], list(range(1, 100)), [5, 6, 7, 8]]


def test_engine_is_loaded_once_and_proved(engine: Engine) -> None:
    assert engine.loads == 1
    assert engine.proved
    assert engine.failure is None
    assert engine.depths[-1] == engine.plan.model.num_layers
    assert engine.loaded.seconds["load"] > 0
    assert any(name.startswith("vllm") for name in engine.loaded.versions)


def test_samples_are_the_prompts_own_in_order(engine: Engine) -> None:
    samples = engine.hidden_states(PROMPTS)
    assert engine.loads == 1
    for ids, sample in zip(PROMPTS, samples, strict=True):
        assert sample.token_ids.tolist() == ids
        assert sample.dtype == engine.plan.dtype
        shape = (len(ids), len(engine.depths), engine.plan.model.hidden_size)
        assert sample.hidden_states.shape == shape
        assert np.isfinite(sample.hidden_states).all()
        for depth in engine.depths:
            assert sample.at(depth).shape == (len(ids), shape[2])
    first, _, _, same = samples
    assert np.allclose(first.hidden_states, same.hidden_states, rtol=1e-5, atol=1e-5)


def test_checked_samples_rebuild_their_log_probabilities(engine: Engine) -> None:
    for sample in engine.hidden_states(PROMPTS, check=True):
        assert sample.logprobs is not None
        assert 0 <= sample.logprobs.mean_err <= sample.logprobs.max_err < 0.25


def test_plain_prefill_has_a_speed(engine: Engine) -> None:
    speeds = engine.plain(PROMPTS, repeats=2)
    assert len(speeds) == 2
    assert min(speeds) > 0


def test_extraction_is_a_dataset_with_a_row_a_token(
    extraction: Extraction,
    engine: Engine,
    sample_reader: Callable[[Path], Sample],
    hs_settings: Settings,
) -> None:
    assert engine.loads == 1
    assert len(extraction.samples) == extraction.result.samples > 0
    for line, sample in zip(extraction.manifest, extraction.samples, strict=True):
        assert sample.id == line.id
        assert sample.tokens == line.tokens == len(sample.token_ids)
        again = sample_reader(extraction.out / line.file)
        assert again.depths == engine.depths
        assert np.array_equal(again.stored, sample.stored)
    assert extraction.result.kept or extraction.result.tokens_per_s > 0
    report = verify(extraction.out)
    assert report.ok, report
    assert hs_settings.out in (None, extraction.out)
