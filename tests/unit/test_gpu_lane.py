"""The order of the GPU lane: one session, engines one after the other."""

from __future__ import annotations

import pytest

from harness.settings import Settings
from tests.gpu._lane import Stage, session_capture, stage

AUTO, PATCHED = Settings(), Settings(capture="patched")


@pytest.mark.parametrize(
    ("fixtures", "timed", "settings", "found"),
    [
        (set(), None, AUTO, Stage.NO_ENGINE),
        ({"engine"}, None, AUTO, Stage.SESSION_ENGINE),
        ({"engine", "memory_back"}, None, AUTO, Stage.ITS_END),
        ({"own_engine", "free_gpus"}, None, AUTO, Stage.OWN_ENGINES),
        ({"timed", "own_engine"}, "none", AUTO, Stage.PLAIN_ENGINE),
        ({"timed", "own_engine"}, "native", AUTO, Stage.SESSION_ENGINE),
        ({"timed", "own_engine"}, "patched", AUTO, Stage.OWN_ENGINES),
        ({"timed", "own_engine"}, "patched", PATCHED, Stage.SESSION_ENGINE),
        ({"timed", "own_engine"}, "native", PATCHED, Stage.OWN_ENGINES),
    ],
)
def test_each_test_comes_when_its_engine_is_there(
    fixtures: set[str], timed: str | None, settings: Settings, found: Stage
) -> None:
    assert stage(frozenset(fixtures), timed, settings) is found


def test_a_plain_engine_comes_before_the_sessions_and_others_behind_its_end() -> None:
    order = [Stage.PLAIN_ENGINE, Stage.SESSION_ENGINE, Stage.ITS_END, Stage.OWN_ENGINES]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("settings", "capture"),
    [(AUTO, "native"), (Settings(capture="native"), "native"), (PATCHED, "patched")],
)
def test_the_sessions_engine_has_the_capture_that_was_asked_for(
    settings: Settings, capture: str
) -> None:
    assert session_capture(settings) == capture
