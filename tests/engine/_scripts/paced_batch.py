"""Prints how batches go through the engine's op ``extract``: paced, with a lost file, and after it.

In a process of its own: ``harness.inside`` imports torch. The engine is one of this file, which
"computes" a request in some milliseconds and tells of its file; no vLLM is started.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from harness.inside import engine
from harness.inside.results import Results
from harness.inside.spool import RESULTS
from harness.inside.wire import OpError

LOST = "a-30"
LENGTH, BUDGET = 5, 10


class Llm:
    """Works on what it was handed once asked for its next requests, or for the end."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._waiting: list[str] = []
        self._done: list[str] = []
        self.waves: list[int] = []

    def enqueue(self, prompts: list[Any], sampling: list[Any], use_tqdm: bool) -> None:
        self.waves.append(len(prompts))
        self._waiting += [one["kv_transfer_params"]["hs"]["key"] for one in sampling]
        self._work(len(prompts))

    def wait_for_completion(self, *, use_tqdm: bool) -> list[str]:
        self._work(len(self._waiting))
        done, self._done = self._done, []
        return done

    def _work(self, most: int) -> None:
        for _ in range(most):
            key = self._waiting.pop(0)
            time.sleep(0.003)
            self._done.append(key)
            if key != LOST:
                with (self._spool / RESULTS).open("a") as file:
                    file.write(json.dumps({"key": key}) + "\n")


def batch(made: Any, name: str, count: int) -> dict[str, Any]:
    """Send a batch; tell who came, how it was handed over, what was refused and when."""
    events: list[str] = []
    made._llm.waves.clear()
    samples = [{"key": f"{name}-{n}", "input_ids": [n] * LENGTH} for n in range(count)]
    limits = {"batch_deadline_s": 60.0, "deadline_s": 1.0}
    error, started = "", time.monotonic()
    try:
        made.extract({"samples": samples, **limits}, lambda _, **line: events.append(line["key"]))
    except OpError as refused:
        error = f"{refused.id}: {refused.found}"
    took = time.monotonic() - started
    missing = sorted({one["key"] for one in samples} - set(events))
    return {"missing": missing, "waves": list(made._llm.waves), "error": error, "seconds": took}


def main() -> None:
    """Run three batches, the second of which loses a file."""
    spool = Path(sys.argv[1])
    engine._sampling = lambda extra, check: extra  # type: ignore[assignment]
    made: Any = engine.Engine()
    made._llm, made._results, made._spool = Llm(spool), Results(spool), spool
    made._budget = BUDGET
    print(json.dumps([batch(made, "first", 40), batch(made, "a", 40), batch(made, "next", 40)]))


if __name__ == "__main__":
    main()
