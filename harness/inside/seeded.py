"""Weights made at load, from a plan in the model's folder, by a loader of vLLM's own kind.

``harness.models`` writes the plan; its names and shapes are those of a real checkpoint. Each
tensor is made on the device that it goes to, from a seed of its own, and given to the model's
``load_weights``: so sharding, Marlin's repacking and the absorbed latent-attention weights are
made by the code that makes them of real weights. vLLM's ``dummy`` format does not do that, and
its norms near zero let every layer pass the stream on unchanged.

``register_model_loader`` is the same in vLLM 0.16 and 0.32. Values depend on the seed and on
torch's generator of the device's type: equal on every rank and in every run of one stack, not
between a CPU and a GPU.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

LOAD_FORMAT = "harness_seeded"
PLAN = "harness-weights.json"
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I32": torch.int32}
_NORM_WIDTH = 0.25
_CORRECTION_STEP = 0.1
# Standard deviation of a code drawn evenly from -8..7.
_CODE_SPREAD = math.sqrt((16**2 - 1) / 12)


def install() -> None:
    """Register the loader with vLLM; called in each worker before the model is built."""
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class SeededLoader(BaseModelLoader):  # type: ignore[misc]  # vllm is untyped here
        """See the module's docstring."""

        def download_model(self, model_config: Any) -> None:
            """Nothing is fetched."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            first = next(model.parameters(), None)
            if first is None:
                return  # native capture's own pseudo model has nothing to load
            device = first.device
            plan = json.loads((Path(model_config.model) / PLAN).read_text())
            loaded = model.load_weights(tensors(plan, device))
            own = {name for name, _ in model.named_parameters()}
            # A quantised layer has parameters that no checkpoint holds.
            if loaded is not None and model_config.quantization is None and own - loaded:
                raise ValueError(f"the plan makes no weights for {sorted(own - loaded)[:5]}")

    register_model_loader(LOAD_FORMAT)(SeededLoader)


def tensors(
    plan: Mapping[str, Any], device: torch.device | str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of a plan under its checkpoint name, made on a device."""
    for entry in plan["tensors"]:
        names = (
            (entry["name"].format(number) for number in range(entry["each"]))
            if ("each" in entry)
            else iter((entry["name"],))
        )
        for name in names:
            yield name, _make(entry, f"{plan['key']}\0{name}", torch.device(device))


def _make(entry: Mapping[str, Any], key: str, device: torch.device) -> torch.Tensor:
    shape, kind, dtype = tuple(entry["shape"]), entry["kind"], _DTYPES[entry["dtype"]]
    if kind == "shape":
        return torch.tensor(entry["of"], dtype=dtype, device=device)
    draw = torch.Generator(device)
    draw.manual_seed(int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest()))
    if kind == "packed":  # any 32 bits are eight codes
        return torch.randint(-(2**31), 2**31, shape, dtype=dtype, device=device, generator=draw)
    if kind == "correction":
        # A ladder with a rung for each expert, as in the checkpoints that are made as files.
        rungs = torch.randperm(shape[0], device=device, generator=draw).float()
        return ((rungs - (shape[0] - 1) / 2) * _CORRECTION_STEP).to(dtype)
    even = torch.rand(shape, device=device, generator=draw).mul_(2).sub_(1)
    if kind == "norm":
        return even.mul_(_NORM_WIDTH).add_(1).to(dtype)
    if kind == "scale":  # groups of unlike size, so that a scale in the wrong place is far off
        return even.mul_(0.5).add_(1).mul_(entry["spread"] / _CODE_SPREAD).to(dtype)
    return even.mul_(entry["spread"] * math.sqrt(3.0)).to(dtype)
