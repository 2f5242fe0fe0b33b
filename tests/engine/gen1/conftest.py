"""The wrapped model of this generation's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import models


@pytest.fixture(scope="session")
def tiny_wrapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "wrapped"
    models.make("kimi-k2.5-tiny", folder, architecture="wrapper", dtype="float32")
    return folder
