"""The pytest plugin. ``docs/fixtures.md`` describes what it offers.

Nothing heavy is imported until a fixture is used: pytest loads this module in every session of
an environment that has the harness.
"""

from __future__ import annotations

import pytest

from harness.plugin import _fixtures
from harness.plugin._attach import fill
from harness.plugin._baselines import KEEPER, BaselineKeeper
from harness.plugin._marks import MARKERS
from harness.plugin._options import add_options, read_settings
from harness.plugin._session import SESSION, HarnessSession, check_given
from harness.plugin._verdict import VERDICT, VerdictKeeper


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register options and ini keys."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers and fixtures, read the settings, begin a session."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    settings = fill(read_settings(config), config.invocation_params.dir)
    check_given(settings)
    session = HarnessSession(config, settings)
    config.stash[SESSION] = session
    config.pluginmanager.register(session, "harness-session")
    config.pluginmanager.register(BaselineKeeper(settings), KEEPER)
    config.pluginmanager.register(VerdictKeeper(session), VERDICT)
    # From a module of their own: in this one, a fixture `engine` would be lost as soon as
    # somebody imports the module `harness.plugin.engine`.
    config.pluginmanager.register(_fixtures, "harness-fixtures")
