"""How far a batch's requests go ahead of its files.

A request costs the engine's process some 0.2 ms when it arrives, and the interpreter's lock: 1,024
at once hold the launch of the first steps up for 0.1 s, while the device waits. Handed over as
files get whole, they arrive in the middle of a step instead, where the engine has nothing else to
do: native capture ran at 0.979 of plain prefill instead of 0.962 (one H200, vLLM 0.26.0, settings
in turn in one engine; ``docs/performance.md``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

STEPS = 8
"""Full steps ahead of the files; a step's files are whole before the next step's end."""

PATIENCE_S = 30.0
"""Longer than a step of a large model, shorter than the deadline of a batch's last files."""

_Item = TypeVar("_Item")
Wave = tuple[list[Any], list[Any]]
"""Prompts and their sampling parameters, as vLLM takes them."""


class Window:
    """Tokens that were handed over and whose files are still to come.

    It only sets a pace: where no file comes for a while (a lost one, a request of many steps), all
    that is left is handed over, and whoever waits for it finds out.

    Args:
        step: Tokens of a full step.
        patience_s: Seconds to wait for a file.
    """

    def __init__(self, step: int, patience_s: float = PATIENCE_S) -> None:
        self._step = step
        self._most: float = STEPS * step
        self._patience = patience_s
        self._ahead = 0
        self._room = threading.Condition()

    def waves(
        self, items: Sequence[_Item], tokens: Callable[[_Item], int]
    ) -> Iterator[list[_Item]]:
        """Yield the items in order, as many together as there is room for at that time.

        Two of the longest always fit, however long: the engine has one while another's file is
        being written.
        """
        with self._room:
            self._most = max(self._most, 2 * max(map(tokens, items), default=0))
        wave: list[_Item] = []
        for item in items:
            size = tokens(item)
            with self._room:
                fits = self._fits(size)
            if not fits:
                if wave:
                    yield wave
                    wave = []
                self._wait(size)
            with self._room:
                self._ahead += size
            wave.append(item)
        if wave:
            yield wave

    def written(self, tokens: int) -> None:
        """Say that a file has come, whole or not."""
        with self._room:
            self._ahead -= tokens
            self._room.notify_all()

    def open(self) -> None:
        """Wait for nothing from now on."""
        with self._room:
            self._most = float("inf")
            self._room.notify_all()

    def _wait(self, size: int) -> None:
        # For a step at once: each arrival wakes the engine's process.
        size = max(size, self._step)
        with self._room:
            while not self._fits(size):
                if not self._room.wait(self._patience):
                    self._most = float("inf")

    def _fits(self, size: int) -> bool:
        return self._ahead == 0 or self._ahead + size <= self._most


def takes_waves(llm: Any) -> bool:
    """Say whether this vLLM takes requests before it is told to work them off (0.17 and newer)."""
    return hasattr(llm, "enqueue") and hasattr(llm, "wait_for_completion")


def run_waves(llm: Any, waves: Iterable[Wave]) -> list[Any]:
    """Hand requests over as the waves come; return the outputs of all, in order.

    What vLLM refuses goes up at once, and what it had taken before stays with it: an engine is
    ended behind an error that nobody foresaw (:mod:`harness.host`).

    Args:
        llm: A ``vllm.LLM`` that :func:`takes_waves`.
        waves: See :meth:`Window.waves`.
    """
    for prompts, sampling in waves:
        llm.enqueue(prompts, sampling, use_tqdm=False)
    outputs: list[Any] = llm.wait_for_completion(use_tqdm=False)
    return outputs
