"""What extraction costs beside plain prefill on vLLM 0.16: 0.3.0's own way, and the harness's.

The tiny model keeps a CPU busy with its experts, so 0.3.0's way of sending every tensor through
the RPC channel hides behind them; at Kimi's width on an H200 it reaches 8 to 10 % of plain prefill.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

import pytest

from harness import patches
from harness.capture.protocol import Request
from harness.extraction import EngineOptions, open_session
from harness.extraction.plan import plan_engine
from tests.engine.gen1._support import PYTHON, Plan, drive, needs_gen1, prompts

pytestmark = [pytest.mark.engine, pytest.mark.slow, needs_gen1]

LENGTH: Final = 200
COUNT: Final = 16
REPEATS: Final = 3
# The batch size that 0.3.0's script has by default.
OWN_BATCH: Final = 8
TOKENS: Final = LENGTH * COUNT


def session_seconds(model: Path, folder: Path, capture: Any) -> list[float]:
    """Seconds of each repeat; with a capture until the last file is whole and checked."""
    options = EngineOptions(
        model=model, layers="2,4,6", dtype="float32", capture=capture, python=PYTHON
    )
    plan = plan_engine(options, longest_prompt=LENGTH, spool=folder / "spool")
    sent = prompts(*[LENGTH] * COUNT)
    with open_session(plan, log=folder / "engine.log") as session:
        session.load()
        if capture == "none":
            found: list[float] = session.plain(sent, REPEATS)["seconds"]
            return found
        session.require_proof()
        seconds = []
        for repeat in range(REPEATS + 1):
            requests = [Request(f"{repeat}-{n}", ids) for n, ids in enumerate(sent)]
            started = time.monotonic()
            session.run(requests, lambda sample: sample.path.unlink())
            seconds.append(time.monotonic() - started)
        return seconds[1:]


def own_seconds(model: Path, folder: Path) -> list[float]:
    """Seconds of each repeat of 0.3.0's generator, which only hands rows over."""
    sent = prompts(*[LENGTH] * COUNT)
    batches = [sent[start : start + OWN_BATCH] for start in range(0, COUNT, OWN_BATCH)]
    needed = [patch.id for patch in patches.needed_in(patches.of_python(PYTHON))]
    plan = Plan("own", str(model), needed, batches * (REPEATS + 1), layer_ids=(1, 3, 5))
    outcome = drive(folder, [plan])["own"]
    assert outcome.error is None
    per, steps = outcome.seconds, len(batches)
    repeats = [sum(per[start : start + steps]) for start in range(0, len(per), steps)]
    return repeats[1:]


def test_the_patched_capture_costs_little_beside_plain_prefill(
    tiny_plain: Path, tmp_path: Path
) -> None:
    seconds = {
        "plain": session_seconds(tiny_plain, tmp_path / "plain", "none"),
        "0.3.0's way, patches on": own_seconds(tiny_plain, tmp_path / "own"),
        "harness, patched": session_seconds(tiny_plain, tmp_path / "patched", "patched"),
    }
    best = {name: TOKENS / min(found) for name, found in seconds.items()}
    over_plain = {name: round(rate / best["plain"], 3) for name, rate in best.items()}
    figures = {
        "tokens": TOKENS,
        "tok_per_s": {name: round(rate) for name, rate in best.items()},
        "over_plain": over_plain,
        "cores": os.cpu_count(),
    }
    print(json.dumps(figures))
    assert over_plain["harness, patched"] >= 0.8, figures
