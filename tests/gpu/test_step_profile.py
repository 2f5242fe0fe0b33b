"""Where a step's time goes with each capture: on the host, between steps, and kernel by kernel.

Reported and never held to a figure; ``docs/performance.md`` explains them. Pinned: that every
capture can be profiled, and that its own work is in the profile. One load a capture.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness import models
from harness.capture.session import EngineSession
from harness.extraction import EngineOptions, open_session
from harness.lease.asked import plan_for
from tests.gpu.conftest import Figures
from tests.timing import capture_pass

pytestmark = [pytest.mark.gpu, pytest.mark.engine, pytest.mark.slow]
SCRIPTS = Path(__file__).parent / "scripts"
PROMPTS, LENGTH, WAIT_S = 384, 512, 60.0
OWN = {"none": "execute_model", "native": "native copies", "patched": "patched keep"}


@pytest.mark.usefixtures("free_gpus")
@pytest.mark.parametrize("capture", ["none", "native", "patched"])
def test_each_captures_work_is_in_the_profile_of_its_steps(
    own_engine: EngineOptions, capture: str, tmp_path: Path, figures: Figures
) -> None:
    random = np.random.default_rng(0)
    top = models.read(own_engine.model).vocab_size // 2
    prompts = [random.integers(0, top, LENGTH).tolist() for _ in range(PROMPTS)]
    asked = tmp_path / "profile"
    env = {"PYTHONPATH": str(SCRIPTS), "HARNESS_STEP_PROFILE": str(asked)}
    plan = plan_for(replace(own_engine, capture=capture), tmp_path / "spool")
    log = tmp_path / "engine.log"
    with open_session(plan, log=log, preload=["step_profile"], env=env) as session:
        session.load()
        once(session, prompts)
        asked.touch()
        once(session, prompts)
        asked.unlink()
        once(session, prompts[:1])  # the next step ends the profile
        ranks = range(own_engine.tensor_parallel_size)
        found = [json.loads(written(asked.with_suffix(f".{rank}.json"))) for rank in ranks]
    for rank, one in enumerate(found):
        figures(capture=capture, rank=rank, **one)
        assert one["steps"] > 0
        assert one["device_ms"]
    # Only the first rank writes samples.
    assert OWN[capture] in found[0]["host_ms"], found[0]["host_ms"]


def once(session: EngineSession, prompts: list[list[int]]) -> None:
    if session.name == "none":
        session.plain(prompts, 1)
    else:
        capture_pass(session, prompts)


def written(path: Path) -> str:
    until = time.monotonic() + WAIT_S
    while not path.exists() or not path.read_text():
        assert time.monotonic() < until, "no profile was written"
        time.sleep(0.1)
    return path.read_text()
