"""What the GPU tests share: how figures are told, and the options of an engine of a test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from harness import models
from harness.extraction import EngineOptions
from harness.plugin._session import SESSION
from harness.settings import Settings


class Figures(Protocol):
    """Tells figures by name."""

    def __call__(self, **found: Any) -> None: ...


@pytest.fixture
def figures(
    request: pytest.FixtureRequest, record_testsuite_property: Callable[[str, object], None]
) -> Figures:
    """Prints figures as one line of JSON, which ends in the bundle's ``figures.jsonl``.

    JUnit's report has the line too, as a property with the test's name.
    """

    def tell(**found: Any) -> None:
        line = json.dumps(found)
        print(line, flush=True)
        record_testsuite_property(f"figures.{request.node.name}", line)

    return tell


@pytest.fixture(scope="module")
def own_engine(pytestconfig: pytest.Config, hs_settings: Settings) -> EngineOptions:
    """Options for engines that a module loads itself, one after the other; needs ``--hs-model``."""
    if pytestconfig.stash[SESSION].keeper.report is not None:
        pytest.skip("the session's own engine holds the GPU: run this file by itself")
    if hs_settings.model is None:
        pytest.skip("no model: give --hs-model")
    layers = models.read(hs_settings.model).num_layers
    wanted = [2, 3, layers - 1] if layers > 4 else [1, layers - 1]
    return EngineOptions(
        model=hs_settings.model,
        layers=",".join(map(str, wanted)),
        python=hs_settings.python,
        tensor_parallel_size=hs_settings.tensor_parallel_size,
        max_num_batched_tokens=8192,
    )
