"""Timed passes of one batch through an engine, and the figures that they give."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.capture.protocol import Captured, Request
from harness.capture.session import EngineSession

Prompts = Sequence[Sequence[int]]
HASHED = "blake3:"


@dataclass(frozen=True)
class Pass:
    """One batch: when the engine was done, and when its files were.

    Attributes:
        files: Seconds until every file was whole, hashed and told of.
        generate: Seconds until the engine itself was done.
        taken: Seconds until the last file was consumed: what its reader adds is in here.
        first: Seconds until the first file was consumed.
        bytes: Size of all files.
        unhashed: Files without a checksum.
    """

    files: float
    generate: float
    taken: float
    first: float
    bytes: int
    unhashed: int


def capture_pass(session: EngineSession, prompts: Prompts) -> Pass:
    """Send one batch; take each file away as it comes."""
    name = time.monotonic_ns()
    requests = [Request(f"t{name}-{n}", ids) for n, ids in enumerate(prompts)]
    came: list[float] = []
    sizes: list[int] = []
    hashed: list[bool] = []

    def consume(sample: Captured) -> None:
        sample.path.unlink()
        came.append(time.monotonic() - started)
        sizes.append(sample.bytes)
        hashed.append(sample.checksum.startswith(HASHED))

    started = time.monotonic()
    times = session.run(requests, consume)
    took = time.monotonic() - started
    return Pass(times.files, times.generate, took, came[0], sum(sizes), hashed.count(False))


@dataclass(frozen=True)
class Timed:
    """Repeats of one batch with capture, and of the same batch without.

    Attributes:
        tokens: Of one repeat.
        passes: With capture; none for an engine that has none.
        plain: Tokens a second of each repeat without; a part of the batch is enough there, since
            no files are waited for.
        beside: Whether each plain repeat was made right after the pass of its place, in the same
            engine, so that the two are a pair.
    """

    tokens: int
    passes: tuple[Pass, ...]
    plain: tuple[float, ...]
    beside: bool

    @property
    def total(self) -> int:
        """Tokens whose files were timed."""
        return self.tokens * len(self.passes)

    def rates(self) -> dict[str, list[float]]:
        """Runs by figure, as baselines keep them; what was not measured is left out."""
        found: dict[str, list[float]] = {}
        if self.plain and (self.beside or not self.passes):
            found["plain_tok_per_s"] = list(self.plain)
        if self.passes:
            found["files_tok_per_s"] = [self.tokens / one.files for one in self.passes]
        if self.passes and self.plain:
            found["ratio"] = self.ratios([one.files for one in self.passes])
        return found

    def ratios(self, seconds: Sequence[float]) -> list[float]:
        """Speed of each pass over plain prefill: of its own repeat, or else of the median one."""
        middle = statistics.median(self.plain)
        plain = self.plain if self.beside else [middle] * len(seconds)
        return [self.tokens / own / one for one, own in zip(plain, seconds, strict=True)]

    def told(self) -> dict[str, Any]:
        """What a reader wants to see beside the runs."""
        found: dict[str, Any] = {"tokens": self.tokens, "repeats": len(self.passes or self.plain)}
        for name, runs in self.rates().items():
            digits = 4 if name.endswith("ratio") else None
            found[name] = round(statistics.median(runs), digits)
            found[f"{name}_range"] = [round(min(runs), digits), round(max(runs), digits)]
        if self.passes and self.plain:
            until_done = self.ratios([one.generate for one in self.passes])
            found["generate_ratio"] = round(statistics.median(until_done), 4)
            until_taken = self.ratios([one.taken for one in self.passes])
            found["taken_ratio"] = round(statistics.median(until_taken), 4)
        if self.passes:
            found["bytes_per_token"] = round(self.passes[0].bytes / self.tokens)
            tails = [one.files - one.generate for one in self.passes]
            found["tail_s"] = round(statistics.median(tails), 4)
        return found


def time_beside(
    session: EngineSession, prompts: Prompts, repeats: int, *, part: int | None = None
) -> Timed:
    """Time an engine whose capture can be paused: each pass has a plain one right behind it.

    Args:
        session: The engine.
        prompts: The batch.
        repeats: How often.
        part: Prompts of the plain pass; by default all.
    """
    passes, plain = [], []
    for _ in range(repeats):
        passes.append(capture_pass(session, prompts))
        plain += _plain_rates(session, prompts[:part], 1)
    return Timed(sum(map(len, prompts)), tuple(passes), tuple(plain), beside=True)


def time_capture(
    session: EngineSession, prompts: Prompts, repeats: int, plain: Sequence[float]
) -> Timed:
    """Time an engine with capture; ``plain`` are another engine's tokens a second, or none."""
    passes = tuple(capture_pass(session, prompts) for _ in range(repeats))
    return Timed(sum(map(len, prompts)), passes, tuple(plain), beside=False)


def time_plain(session: EngineSession, prompts: Prompts, repeats: int) -> Timed:
    """Time an engine without capture; its own warm-up comes first."""
    rates = _plain_rates(session, prompts, repeats)
    return Timed(sum(map(len, prompts)), (), tuple(rates), beside=False)


def _plain_rates(session: EngineSession, prompts: Prompts, repeats: int) -> list[float]:
    tokens = sum(map(len, prompts))
    return [tokens / seconds for seconds in session.plain(prompts, repeats)["seconds"]]
