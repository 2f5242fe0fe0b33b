"""One plain model, one wrapped model and its reference for the whole session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import models
from harness.oracles.reference import ReferenceHost


@pytest.fixture(scope="session")
def tiny_plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "plain"
    models.make("kimi-k2.5-tiny", folder, architecture="plain", dtype="float32")
    return folder


@pytest.fixture(scope="session")
def tiny_wrapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "wrapped"
    models.make("kimi-k2.5-tiny", folder, architecture="wrapper", dtype="float32")
    return folder


@pytest.fixture(scope="session")
def plain_reference(
    tiny_plain: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReferenceHost]:
    out = tmp_path_factory.mktemp("reference")
    with ReferenceHost(tiny_plain, Path(sys.executable), out) as host:
        yield host
