"""Other shapes of engine: chunked prompts, two ranks, INT4 experts. One load each and lane."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import models
from harness.extraction import EngineOptions
from harness.oracles.reference import ReferenceHost
from tests.engine._support import assert_parity, capture, engine_of, reports

pytestmark = pytest.mark.engine

Lane = Callable[[EngineOptions], EngineOptions]


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(sum(lengths))
    return [[draw.randrange(250) for _ in range(length)] for length in lengths]


def test_prompts_longer_than_the_token_budget_return_all_rows_on_the_plain_architecture(
    tmp_path: Path, lane: Lane
) -> None:
    model = tmp_path / "plain"
    models.make("kimi-k2.5-tiny", model, architecture="plain")
    # CPU MLA takes no prompt in chunks; the same weights in the MHA form do.
    options = EngineOptions(
        model=model, layers="5,2", dtype="float32", use_mla=False, max_num_batched_tokens=64
    )
    with (
        ReferenceHost(model, Path(sys.executable), tmp_path / "reference") as reference,
        engine_of(lane(options), tmp_path, longest_prompt=255) as session,
    ):
        assert session.spec.chunked
        assert_parity(reports(session, reference, prompts(200, 255, 130, 3, 64, 65, 63, 1)))
        shared = prompts(96)[0]
        batch = [shared + extra for extra in prompts(20, 33, 1)] + [shared]
        assert_parity(reports(session, reference, batch))


def test_two_ranks_write_each_sample_once_with_the_same_rows(
    tiny_wrapper: Path, reference: ReferenceHost, tmp_path: Path, lane: Lane
) -> None:
    options = EngineOptions(
        model=tiny_wrapper, layers="1,3", dtype="float32", tensor_parallel_size=2
    )
    with engine_of(lane(options), tmp_path, longest_prompt=120) as session:
        assert session.loaded is not None
        assert len(session.loaded.workers) == 2
        assert_parity(reports(session, reference, prompts(1, 17, 40, 96, 33, 120)))
        capture(session, prompts(12))
        assert not list(session.spool.glob("*.safetensors"))


def test_int4_experts_equal_their_dequantised_twin(tmp_path: Path, lane: Lane) -> None:
    packed, twin = tmp_path / "int4", tmp_path / "twin"
    models.make("kimi-k2.5-tiny", packed, experts="int4")
    models.make("kimi-k2.5-tiny", twin, experts="int4-twin")
    options = EngineOptions(model=packed, layers="2,4", dtype="float32")
    with (
        ReferenceHost(twin, Path(sys.executable), tmp_path / "reference") as reference,
        engine_of(lane(options), tmp_path, longest_prompt=120) as session,
    ):
        assert_parity(reports(session, reference, prompts(1, 17, 40, 96, 33, 120)))
