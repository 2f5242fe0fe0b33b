"""Other shapes of engine: chunked prompts, two ranks, INT4 experts. One load each and lane.

Two ranks and INT4 experts share an engine every day; the slow tests tell which of them it was.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import models
from harness.capture.session import EngineSession
from harness.extraction import EngineOptions
from harness.oracles.reference import ReferenceHost
from tests.engine._support import assert_parity, capture, engine_of, reports

pytestmark = pytest.mark.engine

Lane = Callable[[EngineOptions], EngineOptions]


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(sum(lengths))
    return [[draw.randrange(250) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model with INT4 experts, and the same one with what they dequantise to."""
    folder = tmp_path_factory.mktemp("models")
    packed = models.make("kimi-k2.5-tiny", folder / "int4", experts="int4")
    return packed, models.make("kimi-k2.5-tiny", folder / "twin", experts="int4-twin")


def test_prompts_longer_than_the_token_budget_return_all_rows_on_the_plain_architecture(
    tiny_plain: Path, plain_reference: ReferenceHost, tmp_path: Path, lane: Lane
) -> None:
    # CPU MLA takes no prompt in chunks; the same weights in the MHA form do.
    options = EngineOptions(
        model=tiny_plain, layers="5,2", dtype="float32", use_mla=False, max_num_batched_tokens=64
    )
    with engine_of(lane(options), tmp_path, longest_prompt=255) as session:
        assert session.spec.chunked
        assert_parity(reports(session, plain_reference, prompts(200, 255, 130, 3, 64, 65, 63, 1)))
        shared = prompts(96)[0]
        batch = [shared + extra for extra in prompts(20, 33, 1)] + [shared]
        assert_parity(reports(session, plain_reference, batch))


def test_two_ranks_of_int4_experts_write_each_sample_once_with_the_rows_of_their_twin(
    tmp_path: Path, twins: tuple[Path, Path]
) -> None:
    packed, twin = twins
    options = EngineOptions(
        model=packed, layers="4,1", dtype="float32", capture="native", tensor_parallel_size=2
    )
    with (
        ReferenceHost(twin, Path(sys.executable), tmp_path / "reference") as reference,
        engine_of(options, tmp_path, longest_prompt=120) as session,
    ):
        assert_two_ranks(session)
        assert_parity(reports(session, reference, prompts(1, 17, 40, 96, 33, 120)))


def assert_two_ranks(session: EngineSession) -> None:
    assert session.loaded is not None
    assert len(session.loaded.workers) == 2
    capture(session, prompts(12))
    assert not list(session.spool.glob("*.safetensors"))


@pytest.mark.slow
def test_two_ranks_write_each_sample_once_with_the_same_rows(
    tiny_wrapper: Path, reference: ReferenceHost, tmp_path: Path, lane: Lane
) -> None:
    options = EngineOptions(
        model=tiny_wrapper, layers="1,3", dtype="float32", tensor_parallel_size=2
    )
    with engine_of(lane(options), tmp_path, longest_prompt=120) as session:
        assert_two_ranks(session)
        assert_parity(reports(session, reference, prompts(1, 17, 40, 96, 33, 120)))


@pytest.mark.slow
def test_int4_experts_equal_their_dequantised_twin(
    tmp_path: Path, twins: tuple[Path, Path], lane: Lane
) -> None:
    packed, twin = twins
    options = EngineOptions(model=packed, layers="2,4", dtype="float32")
    with (
        ReferenceHost(twin, Path(sys.executable), tmp_path / "reference") as reference,
        engine_of(lane(options), tmp_path, longest_prompt=120) as session,
    ):
        assert_parity(reports(session, reference, prompts(1, 17, 40, 96, 33, 120)))
