"""The pace at which a batch is handed to the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.capture.session import Deadlines
from harness.inside.window import PATIENCE_S, STEPS, Wave, Window, run_waves, takes_waves


def test_as_much_as_the_window_holds_goes_first_and_then_a_step_for_each_step_of_files() -> None:
    window = Window(10, patience_s=5.0)
    waves = window.waves([5] * 40, lambda size: size)
    assert len(next(waves)) == STEPS * 2
    for _ in range(2):
        window.written(5)
    assert next(waves) == [5, 5]
    for _ in range(6):
        window.written(5)
    assert next(waves) == [5] * 6


def ask(waves: Iterator[list[int]]) -> tuple[threading.Thread, list[list[int]]]:
    """Wait for the next wave aside; what came is in the list once the thread has ended."""
    found: list[list[int]] = []
    asks = threading.Thread(target=lambda: found.append(next(waves)))
    asks.start()
    return asks, found


def test_the_next_wave_waits_until_a_whole_step_of_files_is_there() -> None:
    window = Window(10, patience_s=5.0)
    waves = window.waves([5] * 17, lambda size: size)
    next(waves)
    asks, found = ask(waves)
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


def test_files_that_come_slowly_keep_the_window() -> None:
    window = Window(10, patience_s=0.5)
    waves = window.waves([5] * 30, lambda size: size)
    next(waves)
    asks, found = ask(waves)
    for _ in range(2):  # both within the patience, and together beyond it
        time.sleep(0.3)
        window.written(5)
    asks.join(10.0)
    assert found == [[5, 5]]


def test_patience_ends_before_the_deadline_of_the_last_files() -> None:
    assert Deadlines().files > PATIENCE_S


def test_an_opened_window_holds_nothing_back() -> None:
    window = Window(10, patience_s=5.0)
    waves = window.waves([5] * 400, lambda size: size)
    next(waves)
    window.open()
    assert len(next(waves)) == 400 - STEPS * 2


def test_two_of_the_longest_requests_are_ahead_however_long() -> None:
    window = Window(10, patience_s=5.0)
    waves = window.waves([900, 5, 890, 900, 5], lambda size: size)
    assert next(waves) == [900, 5, 890]
    window.written(900)
    assert next(waves) == [900, 5]


@pytest.mark.parametrize("step", [1, 7, 8192])
@given(sizes=st.lists(st.integers(1, 20_000), max_size=60))
def test_every_request_is_handed_over_once_and_in_order(step: int, sizes: list[int]) -> None:
    window = Window(step, patience_s=0.05)
    items = list(enumerate(sizes))
    seen: list[tuple[int, int]] = []
    for wave in window.waves(items, lambda item: item[1]):
        assert wave
        seen += wave
        for _, size in wave:
            window.written(size)
    assert seen == items


class Llm:
    """Works requests off as vLLM's ``LLM`` does; refuses a wave with a negative prompt whole."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.calls: list[str] = []

    def enqueue(self, prompts: list[int], sampling: list[str], use_tqdm: bool = True) -> None:
        self.calls.append("enqueue")
        assert len(prompts) == len(sampling)
        assert not use_tqdm
        if min(prompts) < 0:
            raise ValueError("refused")
        self.waiting += prompts

    def wait_for_completion(self, *, use_tqdm: bool = True) -> list[int]:
        self.calls.append("wait")
        assert not use_tqdm
        done, self.waiting = self.waiting, []
        return done


def wave(*prompts: int) -> Wave:
    return list(prompts), ["greedy"] * len(prompts)


def test_outputs_of_all_waves_come_in_order_once_the_last_one_is_handed_over() -> None:
    llm = Llm()
    assert run_waves(llm, [wave(1, 2), wave(3)]) == [1, 2, 3]
    assert llm.calls == ["enqueue", "enqueue", "wait"]


def test_a_refused_wave_is_told_at_once() -> None:
    llm = Llm()
    with pytest.raises(ValueError, match="refused"):
        run_waves(llm, [wave(1, 2), wave(-1), wave(4)])
    assert llm.calls == ["enqueue", "enqueue"]  # 8 steps may take half a minute


def test_a_release_without_either_call_takes_no_waves() -> None:
    class Older:
        def generate(self) -> None: ...

        def enqueue(self) -> None: ...

    assert takes_waves(Llm())
    assert not takes_waves(Older())
