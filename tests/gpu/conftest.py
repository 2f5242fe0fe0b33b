"""What the GPU tests share: their order, how figures are told, engines of a test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from harness.extraction import EngineOptions
from harness.plugin._asked import engine_options
from harness.settings import Settings
from tests.gpu._lane import end_session_engine, stage_of


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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put engines of a test's own behind the session's, so that one session serves them all."""
    here = Path(__file__).parent
    ours = [item for item in items if item.path.is_relative_to(here)]
    places = [number for number, item in enumerate(items) if item.path.is_relative_to(here)]
    for place, item in zip(places, sorted(ours, key=stage_of), strict=True):
        items[place] = item


@pytest.fixture
def free_gpus(pytestconfig: pytest.Config) -> None:
    """The GPUs without the session's engine, for whatever a test starts there itself."""
    end_session_engine(pytestconfig)


@pytest.fixture(scope="module")
def own_engine(hs_settings: Settings) -> EngineOptions:
    """Options for engines that a test loads itself: the session's; needs ``--hs-model``."""
    if hs_settings.model is None:
        pytest.skip("no model: give --hs-model")
    return engine_options(hs_settings, hs_settings.model)
