"""The pace at which a batch is handed to the engine."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.inside.window import STEPS, Window


def test_as_much_as_the_window_holds_goes_first_and_then_a_step_for_each_step_of_files() -> None:
    window = Window(10, patience_s=60.0)
    waves = window.waves([5] * 40, lambda size: size)
    assert len(next(waves)) == STEPS * 2
    for _ in range(2):
        window.written(5)
    assert next(waves) == [5, 5]
    for _ in range(6):
        window.written(5)
    assert next(waves) == [5] * 6


def test_the_next_wave_waits_until_a_whole_step_of_files_is_there() -> None:
    window = Window(10, patience_s=60.0)
    waves = window.waves([5] * 17, lambda size: size)
    next(waves)
    found: list[list[int]] = []
    asks = threading.Thread(target=lambda: found.append(next(waves)))
    asks.start()
    window.written(5)
    asks.join(0.1)
    assert asks.is_alive()
    window.written(5)
    asks.join(10.0)
    assert found == [[5]]


def test_without_any_file_all_that_is_left_is_handed_over() -> None:
    window = Window(10, patience_s=0.02)
    started = time.monotonic()
    waves = list(window.waves([5] * 400, lambda size: size))
    assert [len(wave) for wave in waves] == [STEPS * 2, 400 - STEPS * 2]
    assert time.monotonic() - started < 5.0


def test_an_opened_window_holds_nothing_back() -> None:
    window = Window(10, patience_s=60.0)
    waves = window.waves([5] * 400, lambda size: size)
    next(waves)
    window.open()
    assert len(next(waves)) == 400 - STEPS * 2


def test_a_request_longer_than_the_window_goes_alone_once_nothing_is_ahead() -> None:
    window = Window(10, patience_s=60.0)
    waves = window.waves([5, 900, 5], lambda size: size)
    assert next(waves) == [5]
    window.written(5)
    assert next(waves) == [900]
    window.written(900)
    assert next(waves) == [5]


@pytest.mark.parametrize("step", [1, 7, 8192])
@given(sizes=st.lists(st.integers(1, 20_000), max_size=60))
def test_every_request_is_handed_over_once_and_in_order(step: int, sizes: list[int]) -> None:
    window = Window(step, patience_s=60.0)
    items = list(enumerate(sizes))
    seen: list[tuple[int, int]] = []
    for wave in window.waves(items, lambda item: item[1]):
        assert wave
        seen += wave
        for _, size in wave:
            window.written(size)
    assert seen == items
