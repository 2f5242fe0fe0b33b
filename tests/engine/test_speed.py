"""Speed as a ratio within one run, and memory: plain prefill, stock style, our captures."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.capture.protocol import Request
from harness.capture.session import EngineSession
from harness.extraction import EngineOptions, open_session
from harness.extraction.plan import EnginePlan, plan_engine
from tests.engine.bench.memory import peak_memory

pytestmark = [pytest.mark.engine, pytest.mark.slow]
BENCH = Path(__file__).parent / "bench"
REPEATS = 5
LONGEST = 256
CAPTURES = ("plain", "stock style", "native", "patched")


@pytest.fixture(scope="module")
def fast_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fast-model")
    command = [sys.executable, str(BENCH / "fast_model.py"), str(folder)]
    subprocess.run(command, check=True, timeout=300)
    return folder


def prompts(count: int) -> list[list[int]]:
    draw = random.Random(0)
    lengths = [draw.choice([64, 128, LONGEST]) for _ in range(count)]
    return [[draw.randrange(250) for _ in range(length)] for length in lengths]


def plan_of(model: Path, folder: Path, name: str) -> EnginePlan:
    (folder / "stock").mkdir(parents=True)
    capture: Any = {"plain": "none", "patched": "patched"}.get(name, "native")
    options = EngineOptions(model=model, layers="1,2,3,6", dtype="float32", capture=capture)
    plan = plan_engine(options, longest_prompt=LONGEST, spool=folder / "spool")
    return stock_plan(plan, folder) if name == "stock style" else plan


def stock_plan(plan: EnginePlan, folder: Path) -> EnginePlan:
    config: Mapping[str, Any] = {
        "kv_connector": "StockStyleConnector",
        "kv_connector_module_path": "stock_style",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(folder / "stock")},
    }
    args = {**plan.session.engine_args, "kv_transfer_config": config}
    kept = {n: v for n, v in plan.session.expect.items() if not n.startswith("kv_transfer_config")}
    return replace(plan, session=replace(plan.session, engine_args=args, expect=kept))


def ours(session: EngineSession, sent: list[list[int]]) -> list[float]:
    """Seconds of each repeat, every file whole and seen by the parent."""
    seconds = []
    for repeat in range(REPEATS + 1):
        requests = [Request(f"{repeat}-{n}", ids) for n, ids in enumerate(sent)]
        started = time.monotonic()
        session.run(requests, lambda sample: sample.path.unlink())
        seconds.append(time.monotonic() - started)
    return seconds[1:]


def measure(model: Path, folder: Path, sent: list[list[int]]) -> dict[str, Any]:
    """Load each engine once, one after the other; the best of the repeats counts."""
    tokens = sum(map(len, sent))
    rates, peaks = {}, {}
    for name in CAPTURES:
        place = folder / name.replace(" ", "-")
        plan = plan_of(model, place, name)
        env = {"PYTHONPATH": str(BENCH)}
        with (
            peak_memory(os.getpid()) as peak,
            open_session(plan, log=place / "engine.log", env=env) as session,
        ):
            session.load()
            if name in ("native", "patched"):
                session.require_proof()
                seconds = ours(session, sent)
            else:
                # In the stock style files may still be on their way when this returns.
                seconds = session.plain(sent, REPEATS)["seconds"]
        rates[name] = tokens / min(seconds)
        peaks[name] = round(peak.bytes / 1e9, 2)
    figures = {
        "model": model.name,
        "prompts": len(sent),
        "tokens": tokens,
        "tok_per_s": {name: round(rate) for name, rate in rates.items()},
        "over_plain": {name: round(rates[name] / rates["plain"], 3) for name in CAPTURES},
        "native_over_stock": round(rates["native"] / rates["stock style"], 3),
        "peak_memory_GB": peaks,
        "cores": os.cpu_count(),
    }
    print(json.dumps(figures))
    return figures


def test_capture_costs_little_beside_plain_prefill(tiny_wrapper: Path, tmp_path: Path) -> None:
    figures = measure(tiny_wrapper, tmp_path, prompts(64))
    assert figures["over_plain"]["native"] >= 0.8, figures
    assert figures["over_plain"]["patched"] >= 0.8, figures


def test_capture_keeps_up_where_the_engine_sets_the_pace(fast_model: Path, tmp_path: Path) -> None:
    figures = measure(fast_model, tmp_path, prompts(256))
    # Rows are checked and hashed here, and the clock runs until the last file is whole; the
    # stock style does neither.
    assert figures["native_over_stock"] >= 0.7, figures
