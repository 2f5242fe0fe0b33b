"""One wrapper engine and one reference for the whole session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import models
from harness.capture.session import EngineSession
from harness.extraction import EngineOptions
from harness.oracles.reference import ReferenceHost
from tests.engine._support import engine_of

LONGEST = 300


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
def wrapper_engine(
    tiny_wrapper: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineSession]:
    # Unsorted on purpose: the engine answers in ascending order, the file must not.
    options = EngineOptions(model=tiny_wrapper, layers="4,1,3", dtype="float32")
    with engine_of(options, tmp_path_factory.mktemp("engine"), longest_prompt=LONGEST) as session:
        yield session
