"""One session for the whole lane: which test comes when, and when the session's engine ends.

Engines that want the GPUs for themselves come last, and the first of them ends the session's.
"""

from __future__ import annotations

import enum

import pytest

from harness import models
from harness.plugin._session import SESSION
from harness.settings import Settings

TIMED = "timed"
"""The fixture whose parameter says which capture's engine a test wants."""


class Stage(enum.IntEnum):
    """When a test runs; within a stage in the order of the files."""

    NO_ENGINE = enum.auto()
    PLAIN_ENGINE = enum.auto()
    SESSION_ENGINE = enum.auto()
    ITS_END = enum.auto()
    OWN_ENGINES = enum.auto()


def session_capture(settings: Settings) -> str:
    """Return which capture the session's engine has, as far as the options tell."""
    return "patched" if settings.capture == "patched" else "native"


def stage(fixtures: frozenset[str], timed: str | None, settings: Settings) -> Stage:
    """Return when a test runs.

    Args:
        fixtures: Names of all that it uses.
        timed: The capture of the engine that it wants timed; None where it wants none.
        settings: What the user set.
    """
    if timed is not None:
        at = {"none": Stage.PLAIN_ENGINE, session_capture(settings): Stage.SESSION_ENGINE}
        return at.get(timed, Stage.OWN_ENGINES)
    if "memory_back" in fixtures:
        return Stage.ITS_END
    if "free_gpus" in fixtures:
        return Stage.OWN_ENGINES
    return Stage.SESSION_ENGINE if "engine" in fixtures else Stage.NO_ENGINE


def stage_of(item: pytest.Item) -> Stage:
    """Read when a test runs."""
    fixtures = frozenset(getattr(item, "fixturenames", ()))
    params = getattr(getattr(item, "callspec", None), "params", {})
    return stage(fixtures, params.get(TIMED), item.config.stash[SESSION].settings)


def end_session_engine(config: pytest.Config) -> None:
    """Give the GPUs to an engine of a test's own; skip where that would cost too much."""
    session = config.stash[SESSION]
    settings = session.settings
    if settings.attach is not None:
        pytest.skip("a leased engine holds the GPUs: run this without --hs-attach")
    if session.keeper.report is None:
        return
    if settings.model is not None and not models.read(settings.model).weights_at_load:
        pytest.skip("the session has loaded a whole checkpoint already: run this file by itself")
    session.keeper.close()
