"""One wrapper engine and one reference for the whole session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import models
from harness.capture.session import EngineSession
from harness.extraction import EngineOptions
from harness.oracles.reference import ReferenceHost
from tests.engine._support import engine_of

LONGEST = 300
GEN1 = Path(__file__).parents[2] / ".venv" / "gen1" / "bin" / "python"


@pytest.fixture(scope="session")
def tiny_wrapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "wrapper"
    models.make("kimi-k2.5-tiny", folder)
    return folder


@pytest.fixture(scope="session")
def reference(
    tiny_wrapper: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReferenceHost]:
    with ReferenceHost(
        tiny_wrapper, Path(sys.executable), tmp_path_factory.mktemp("reference")
    ) as host:
        yield host


@pytest.fixture(scope="session")
def gen1_python() -> Path:
    """Interpreter of the lane with vLLM 0.16."""
    if not GEN1.exists():
        pytest.skip("no environment .venv/gen1: make gen1")
    return GEN1


Lane = Callable[[EngineOptions], EngineOptions]


def lane_of(name: str, request: pytest.FixtureRequest) -> Lane:
    """Return what turns options into those of a lane: ``native``, ``patched``, ``patched-gen1``."""
    if name == "native":
        return lambda options: replace(options, capture="native")
    if name == "patched":
        return lambda options: replace(options, capture="patched")
    python: Path = request.getfixturevalue("gen1_python")
    return lambda options: replace(options, capture="patched", python=python)


@pytest.fixture(params=["native", pytest.param("patched-gen1", marks=pytest.mark.slow)])
def lane(request: pytest.FixtureRequest) -> Lane:
    return lane_of(request.param, request)


@pytest.fixture(
    scope="session",
    params=["native", "patched-gen1", pytest.param("patched", marks=pytest.mark.slow)],
)
def wrapper_engine(
    request: pytest.FixtureRequest, tiny_wrapper: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineSession]:
    """Every capture that must give the same rows; the patched ones with prompts cut in chunks."""
    # Unsorted on purpose: the engine answers in ascending order, the file must not.
    options = EngineOptions(model=tiny_wrapper, layers="4,1,3", dtype="float32")
    if request.param != "native":
        # CPU MLA takes no prompt in chunks.
        options = replace(options, max_num_batched_tokens=64, use_mla=False)
    options = lane_of(request.param, request)(options)
    with engine_of(options, tmp_path_factory.mktemp("engine"), longest_prompt=LONGEST) as session:
        assert session.spec.chunked == (request.param != "native")
        yield session
