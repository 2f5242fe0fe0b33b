"""The pytest plugin. ``docs/fixtures.md`` describes what it offers.

Nothing heavy is imported until a fixture is used: pytest loads this module in every session of
an environment that has the harness.
"""

from __future__ import annotations

import pytest

from harness.plugin._fixtures import (
    engine,
    extraction,
    hs_settings,
    sample_reader,
    tiny_kimi,
    tiny_kimi_factory,
)
from harness.plugin._marks import MARKERS
from harness.plugin._options import add_options, read_settings
from harness.plugin._session import SESSION, HarnessSession, check_given

__all__ = [
    "engine",
    "extraction",
    "hs_settings",
    "pytest_addoption",
    "pytest_configure",
    "sample_reader",
    "tiny_kimi",
    "tiny_kimi_factory",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register options and ini keys."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, read the settings, begin a session."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    settings = read_settings(config)
    check_given(settings)
    session = HarnessSession(config, settings)
    config.stash[SESSION] = session
    config.pluginmanager.register(session, "harness-session")
