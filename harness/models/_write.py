"""The files of a made model: configuration, tokenizer, weights or their plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.models import _safetensors
from harness.models._at_load import weights_plan
from harness.models._config import (
    CONFIG_FILE,
    IMAGE_PROCESSOR_FILE,
    plain_config,
    wrapper_config,
)
from harness.models._int4 import dequantise, quantise
from harness.models._kimi import KimiShape
from harness.models._recipe import Recipe, record_of
from harness.models._remote_code import (
    CONFIG_CODE,
    IMAGE_PROCESSOR_CODE,
    preprocessor_config,
)
from harness.models._safetensors import Blob
from harness.models._stream import on_bfloat16_grid, to_bfloat16_bits
from harness.models._tensors import (
    WRAPPER_PREFIX,
    Kind,
    TensorSpec,
    text_tensors,
    vision_tensors,
)
from harness.models._tokenizer import tokenizer_config, tokenizer_json
from harness.models._weights import values


def plan_of(recipe: Recipe, shape: KimiShape) -> dict[str, Any]:
    """Return the plan from which an engine makes the weights at load."""
    return weights_plan(
        shape,
        key=f"{recipe.profile}\0{recipe.seed}",
        prefix=WRAPPER_PREFIX if recipe.architecture == "wrapper" else "",
        experts="int4" if recipe.experts == "int4" else "dense",
        dtype=recipe.dtype,
    )


def write_texts(folder: Path, recipe: Recipe, shape: KimiShape, *, tokenizer: bool) -> None:
    """Write configuration, code and, where asked for, the tokenizer."""
    int4 = recipe.experts == "int4"
    if recipe.architecture == "plain":
        config = plain_config(shape, dtype=recipe.dtype, int4=int4)
    else:
        config = wrapper_config(shape, dtype=recipe.dtype, int4=int4)
        write_json(folder / "preprocessor_config.json", preprocessor_config(shape))
        (folder / IMAGE_PROCESSOR_FILE).write_text(IMAGE_PROCESSOR_CODE)
        (folder / CONFIG_FILE).write_text(CONFIG_CODE)
    write_json(folder / "config.json", config)
    if tokenizer:
        write_json(folder / "tokenizer.json", tokenizer_json(shape))
        write_json(folder / "tokenizer_config.json", tokenizer_config(shape))


def write_weights(folder: Path, recipe: Recipe, shape: KimiShape) -> None:
    """Write the shards and their index."""
    prefix = WRAPPER_PREFIX if recipe.architecture == "wrapper" else ""
    specs = [(prefix, spec) for spec in text_tensors(shape)]
    if recipe.architecture == "wrapper":
        specs += [("", spec) for spec in vision_tensors(shape)]
    shards = _shards(specs, shape)
    # The recipe in each header sets models of unlike seeds apart, by header alone.
    metadata = {"format": "pt", "harness": json.dumps(record_of(recipe), sort_keys=True)}
    index: dict[str, str] = {}
    total = 0
    for number, members in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):06d}.safetensors"  # Kimi's own pattern
        blobs = [blob for prefix, spec in members for blob in _blobs(prefix, spec, recipe)]
        index.update({blob.name: name for blob in blobs})
        total += _safetensors.write(folder / name, blobs, metadata)
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))},
    )


def _shards(
    specs: list[tuple[str, TensorSpec]], shape: KimiShape
) -> list[list[tuple[str, TensorSpec]]]:
    """Deal the tensors over two shards, cut in the middle of the layers."""
    cut = f"model.layers.{shape.num_hidden_layers // 2}."
    start = next(i for i, (_, spec) in enumerate(specs) if spec.name.startswith(cut))
    return [specs[:start], specs[start:]]


def _blobs(prefix: str, spec: TensorSpec, recipe: Recipe) -> Iterator[Blob]:
    name = prefix + spec.name
    array = values(spec, f"{recipe.profile}\0{recipe.seed}")
    if spec.kind is Kind.EXPERT and recipe.experts != "dense":
        packed = quantise(array)
        if recipe.experts == "int4":
            yield Blob(f"{name}_packed", "I32", packed.packed)
            yield Blob(f"{name}_scale", "BF16", packed.scale_bits)
            yield Blob(f"{name}_shape", "I32", np.array(packed.shape, dtype=np.int32))
            return
        array = dequantise(packed)
        if recipe.dtype == "bfloat16":
            array = on_bfloat16_grid(array)
    if recipe.dtype == "float32" or spec.kind is Kind.CORRECTION:
        yield Blob(name, "F32", array)
    else:
        yield Blob(name, "BF16", to_bfloat16_bits(array))


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file as people read it."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
