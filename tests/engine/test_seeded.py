"""Weights made at load: the plan names a checkpoint's tensors, and the engine runs them."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from harness import models  # noqa: E402
from harness.extraction import EngineOptions  # noqa: E402
from harness.inside.seeded import PLAN, tensors  # noqa: E402
from harness.oracles.reference import ReferenceHost  # noqa: E402
from tests.engine._support import assert_parity, engine_of, reports  # noqa: E402

pytestmark = pytest.mark.engine


def plan_of(folder: Path) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((folder / PLAN).read_text())
    return plan


@pytest.mark.parametrize("architecture", ["plain", "wrapper"])
@pytest.mark.parametrize("experts", ["dense", "int4"])
def test_the_plan_makes_the_text_tensors_of_the_checkpoint_that_files_hold(
    tmp_path: Path, architecture: str, experts: str
) -> None:
    kind = {"architecture": architecture, "experts": experts, "dtype": "bfloat16"}
    files = models.make("kimi-k2.5-tiny", tmp_path / "files", **kind)  # type: ignore[arg-type]
    plan = models.make("kimi-k2.5-tiny", tmp_path / "plan", weights="load", **kind)  # type: ignore[arg-type]
    held = {}
    for shard in files.glob("*.safetensors"):
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                held[name] = (part.get_dtype(), part.get_shape())
    text = {n: v for n, v in held.items() if "vision" not in n and "projector" not in n}
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int32: "I32"}
    made = {n: (names[t.dtype], list(t.shape)) for n, t in tensors(plan_of(plan), "cpu")}
    assert made == text


def test_one_seed_gives_one_model_and_no_two_tensors_alike(tmp_path: Path) -> None:
    plan = plan_of(models.make("kimi-k2.5-tiny", tmp_path / "a", weights="load"))
    other = plan_of(models.make("kimi-k2.5-tiny", tmp_path / "b", weights="load", seed=1))
    first, again = dict(tensors(plan, "cpu")), dict(tensors(plan, "cpu"))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    matrices = [tensor for tensor in first.values() if tensor.ndim == 2]
    starts = {tuple(matrix.flatten()[:4].tolist()) for matrix in matrices}
    assert len(starts) == len(matrices)
    changed = [n for n, tensor in tensors(other, "cpu") if not torch.equal(tensor, first[n])]
    assert len(changed) == len(first)


def test_made_experts_are_as_wide_spread_as_those_in_files(tmp_path: Path) -> None:
    plan = plan_of(models.make("kimi-k2.5-tiny", tmp_path / "a", weights="load", experts="int4"))
    made = dict(tensors(plan, "cpu"))
    name = "language_model.model.layers.1.mlp.experts.3.down_proj.weight"
    words, scale = made[f"{name}_packed"], made[f"{name}_scale"].float()
    codes = torch.stack([(words >> (4 * n)) & 15 for n in range(8)], dim=-1).flatten(1) - 8
    values = codes.view(*scale.shape, -1) * scale.unsqueeze(-1)
    want = next(e["spread"] for e in plan["tensors"] if "experts.{}.down_proj" in e["name"])
    assert 0.8 * want < float(values.std()) < 1.3 * want
    assert made[f"{name}_shape"].tolist() == [128, 256]


@pytest.mark.slow
def test_an_engine_of_made_weights_equals_the_reference_of_the_same_weights_in_files(
    tmp_path: Path,
) -> None:
    made = models.make("kimi-k2.5-tiny", tmp_path / "made", weights="load")
    files = models.make("kimi-k2.5-tiny", tmp_path / "files")
    plan = plan_of(made)
    for shard in files.glob("*.safetensors"):
        with safe_open(shard, "pt") as file:
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        kept.update({name: t for name, t in tensors(plan, "cpu") if name in kept})
        save_file(kept, shard, metadata={"format": "pt"})
    draw = random.Random(3)
    prompts = [[draw.randrange(250) for _ in range(length)] for length in (1, 17, 60, 33)]
    options = EngineOptions(model=made, layers="1,4", dtype="float32")
    with (
        ReferenceHost(files, Path(sys.executable), tmp_path / "reference") as reference,
        engine_of(options, tmp_path, longest_prompt=99) as session,
    ):
        assert_parity(reports(session, reference, prompts))
