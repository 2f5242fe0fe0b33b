"""Markers: what a test needs, read from the test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

MARKERS = (
    "engine: needs a vLLM in --hs-python; tests that use the fixtures `engine` or `extraction` "
    "have it by themselves",
    "gpu: needs a usable NVIDIA GPU",
    "multi_gpu(n): needs n usable NVIDIA GPUs; such a test has `gpu` by itself",
    "kimi: holds for Kimi-K2.5's architecture only, of which the tiny model is one",
    "slow: takes longer than 20 seconds",
)
_FIXTURES = ("engine", "extraction")


@dataclass(frozen=True)
class Needs:
    """What a test needs.

    Attributes:
        engine: A vLLM.
        session_engine: The engine that the session shares.
        gpus: So many GPUs.
        kimi: A model of Kimi-K2.5's architecture.
    """

    engine: bool
    session_engine: bool
    gpus: int
    kimi: bool

    @property
    def alone(self) -> bool:
        """Whether tests like this one must share one process."""
        return self.engine or self.gpus > 0


def needs(item: pytest.Item) -> Needs:
    """Read what a test needs.

    Raises:
        pytest.UsageError: A ``multi_gpu`` marker without a whole number.
    """
    shared = _uses_session_engine(item)
    return Needs(
        engine=shared or item.get_closest_marker("engine") is not None,
        session_engine=shared,
        gpus=max(_gpu_count(item), int(item.get_closest_marker("gpu") is not None)),
        kimi=item.get_closest_marker("kimi") is not None,
    )


def complete(item: pytest.Item, *, timed: bool) -> None:
    """Add the markers that follow from a test's fixtures and other markers.

    Args:
        item: A test that was just collected; ``-m`` has not looked at it yet.
        timed: Whether pytest-timeout is there.
    """
    found = needs(item)
    if found.engine:
        item.add_marker(pytest.mark.engine)
    if found.gpus:
        item.add_marker(pytest.mark.gpu)
    if timed and found.session_engine:
        _time_the_test_only(item)


def _uses_session_engine(item: pytest.Item) -> bool:
    """Whether a test uses our fixtures, and not others of these common names."""
    info: Any = getattr(item, "_fixtureinfo", None)
    found: dict[str, Any] = getattr(info, "name2fixturedefs", {})
    used = [found[name][-1].func for name in _FIXTURES if found.get(name)]
    return any(getattr(func, "__module__", "").startswith("harness.plugin") for func in used)


def _gpu_count(item: pytest.Item) -> int:
    most = 0
    for mark in item.iter_markers("multi_gpu"):
        given = (*mark.args, *mark.kwargs.values())
        count = given[0] if len(given) == 1 and set(mark.kwargs) <= {"n"} else None
        if type(count) is not int or count < 1:
            shown = ", ".join(
                [*map(repr, mark.args), *(f"{k}={v!r}" for k, v in mark.kwargs.items())]
            )
            raise pytest.UsageError(
                f"{item.nodeid}: expected multi_gpu(n) with a whole number of 1 or more, "
                f"found multi_gpu({shown})"
            )
        most = max(most, count)
    return most


def _time_the_test_only(item: pytest.Item) -> None:
    """Keep the engine's load off the first test's time limit; the load has its own deadline."""
    mark = item.get_closest_marker("timeout")
    args, kwargs = (mark.args, dict(mark.kwargs)) if mark else ((), {})
    kwargs.setdefault("func_only", True)
    item.add_marker(pytest.mark.timeout(*args, **kwargs), append=False)
