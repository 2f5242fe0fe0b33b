"""Drives the unmodified generator of speculators 0.3.0 in its own interpreter."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from harness import patches
from harness.oracles.parity import ParityReport
from harness.oracles.reference import ReferenceHost

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv" / "gen1" / "bin" / "python"
DRIVER = Path(__file__).parent / "scripts" / "drive.py"

needs_gen1 = pytest.mark.skipif(
    not PYTHON.exists(), reason="no .venv/gen1 (vLLM 0.16.0 with speculators 0.3.0): make gen1"
)

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # 0.16.0 has no latent attention on CPU; the same weights in the other form are the same model.
    "VLLM_MLA_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}

CRASHES = (
    "scheduler-config",
    "eagle3-check",
    "model-walk",
    "device-memory",
    "kv-config-call",
    "scheduler-block-size",
    "model-forward",
    "prefix-reuse",
    "single-reply",
    "two-phase",
)
"""Patches of the faults that raise on vLLM 0.16.0, in the order in which they are met."""

Batch = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Plan:
    """One generator: its patches and what it is sent."""

    name: str
    model: str
    patches: Sequence[str]
    batches: Sequence[Batch]
    layer_ids: Sequence[int] = (5, 1, 3)
    budget: int | None = None
    dtype: str = "float32"
    text_only: bool = False
    tensor_parallel_size: int = 1


@dataclass(frozen=True)
class Outcome:
    """What came of a plan."""

    plan: Plan
    out: Path
    left: Sequence[Sequence[int]] = ()
    error: Mapping[str, str] | None = None
    asynchronous: Sequence[bool] = field(default=())
    seconds: Sequence[float] = field(default=())

    def rows(self, batch: int, place: int) -> list[npt.NDArray[np.float32]]:
        """The layers of one prompt, as they came back."""
        return [
            np.load(self.out / f"{self.plan.name}.{batch}.{place}.{column}.npy")
            for column in range(len(self.plan.layer_ids))
        ]

    def reports(
        self, reference: ReferenceHost, batch: int, layers: Sequence[int] | None = None
    ) -> list[ParityReport]:
        """Compare a batch with the reference; id k of 0.3.0 is depth k + 1."""
        prompts = {f"p{place}": ids for place, ids in enumerate(self.plan.batches[batch])}
        truth = reference.compute(prompts)
        depths = [layer + 1 for layer in layers or self.plan.layer_ids]
        found = []
        for place, one in enumerate(truth.values()):
            columns = self.rows(batch, place)
            got = np.stack(columns, axis=1)
            found.append(one.compare(got, depths, others=truth))
        return found


def drive(
    folder: Path, plans: Sequence[Plan], *, python: Path = PYTHON, timeout_s: float = 600
) -> dict[str, Outcome]:
    """Run plans in one child of the generation-1 interpreter (or another), in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    listing = folder / "plans.json"
    listing.write_text(json.dumps([asdict(plan) for plan in plans]))
    known = [id for plan in plans for id in plan.patches]
    chosen = [patch for patch in patches.PATCHES if patch.id in known]
    with patches.patched_environment(chosen, env={**os.environ, **ENVIRONMENT}) as env:
        # The hook watches for all; each plan says which of them are in force, once the import of
        # speculators itself is through. What that import needs is not in its own modules.
        imports = [patch.id for patch in chosen if not patch.module.startswith("speculators.")]
        env["HARNESS_PATCHES"] = " ".join(imports)
        log = folder / "engine.log"
        with log.open("w") as stream:
            done = subprocess.run(
                [str(python), str(DRIVER), str(listing), str(folder)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
    assert done.returncode == 0, log.read_text()[-3000:]
    return {plan.name: _outcome(plan, folder) for plan in plans}


def drive_by_command(folder: Path, plan: Plan, *, timeout_s: float = 600) -> tuple[Outcome, str]:
    """Run one plan through ``harness patches run``; gives also what was said."""
    folder.mkdir(parents=True, exist_ok=True)
    listing = folder / "plans.json"
    listing.write_text(json.dumps([asdict(plan)]))
    command = [sys.executable, "-m", "harness", "patches", "run", "--"]
    done = subprocess.run(
        [*command, str(PYTHON), str(DRIVER), str(listing), str(folder)],
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    (folder / "engine.log").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:]
    return _outcome(plan, folder), done.stdout


def _outcome(plan: Plan, folder: Path) -> Outcome:
    said: dict[str, Any] = json.loads((folder / f"{plan.name}.json").read_text())
    asynchronous = said.get("async", ())
    return Outcome(plan, folder, said["left"], said["error"], asynchronous, said["seconds"])


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(f"{seed} {lengths}")
    return [[draw.randrange(250) for _ in range(length)] for length in lengths]
