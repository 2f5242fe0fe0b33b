"""The races behind silently wrong rows, forced: a busy stream, freed memory, async replies.

Each case here starts a process of its own that wants a share of the GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.extraction import EngineOptions
from harness.extraction.plan import plan_engine
from harness.settings import Settings
from tests.gpu.conftest import Figures

pytestmark = [pytest.mark.gpu, pytest.mark.engine, pytest.mark.slow]
SCRIPTS = Path(__file__).parent / "scripts"
CHECKOUT = Path(__file__).parents[2]


def run(python: Path, script: str, *arguments: str, **env: str) -> dict[str, Any]:
    path = os.pathsep.join((str(SCRIPTS), str(CHECKOUT)))
    done = subprocess.run(
        [str(python), str(SCRIPTS / script), *arguments],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    # The engine's log goes to the same place, also behind the answer.
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"')))
    assert isinstance(found, dict)
    return found


def test_copies_wait_for_a_busy_forward_and_keep_its_memory(
    hs_settings: Settings, figures: Figures
) -> None:
    found = run(hs_settings.python, "staging_race.py")
    figures(**found)
    assert found["late_forward"] == found["reused_memory"] == found["early_copy"] == 0, found
    assert found["early_copy_came_early"], found
    # Without the one line that orders each case it goes wrong, so both were really forced.
    assert found["late_forward_unordered"] > 0, found
    assert found["reused_memory_unordered"] > 0, found
    assert found["early_copy_unordered"] > 0, found


@pytest.fixture
def order(free_gpus: None, hs_settings: Settings, tmp_path: Path) -> dict[str, Any]:
    if hs_settings.model is None:
        pytest.skip("no model: give --hs-model")
    options = EngineOptions(
        model=hs_settings.model, python=hs_settings.python, capture="none", dtype="bfloat16"
    )
    plan = plan_engine(options, longest_prompt=64, spool=tmp_path / "spool")
    dropped = ("async_scheduling", "worker_extension_cls", "distributed_executor_backend")
    kept = {n: v for n, v in plan.session.engine_args.items() if n not in dropped}
    env = {**plan.recipe.env, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if plan.recipe.preload:
        env["HARNESS_PRELOAD"] = ",".join(plan.recipe.preload)
    return {"engine_args": kept, "folder": str(tmp_path), "env": env}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_replies_of_a_busy_worker_are_wrong_only_where_we_refuse_to_capture(
    order: dict[str, Any],
    hs_settings: Settings,
    tmp_path: Path,
    figures: Figures,
    asynchronous: bool,
) -> None:
    order["engine_args"] |= {
        "async_scheduling": asynchronous,
        "distributed_executor_backend": "mp",  # as speculators 0.3.0, and as every TP > 1
    }
    file = tmp_path / "order.json"
    file.write_text(json.dumps(order))
    found = run(hs_settings.python, "async_replies.py", str(file), **order["env"])
    figures(**found)
    assert found["async"] is asynchronous
    assert ("asynchronously" in found["refused"]) is asynchronous, found
    # Should a release order its replies, this is where it shows: docs/upstream-faults.md.
    assert (found["wrong"] > 0) is asynchronous, found
