"""A checkpoint cut to its first layers, at full width, with weights made at load."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness.errors import NotComparable, Refused, UsageError
from harness.models._at_load import WEIGHTS_PLAN, weights_plan
from harness.models._facts import ModelFacts, read, read_config
from harness.models._shape import shape_of
from harness.models._tensors import WRAPPER_PREFIX

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
_OWN = ("config.json", "harness-model.json", WEIGHTS_PLAN)
_LARGEST = 64 << 20  # a tokenizer's tables have some MB; what is larger is no text
_QUANTIZATIONS = (None, "int4")
_DTYPES = ("float32", "bfloat16")


def cut(source: str | os.PathLike[str], directory: str | os.PathLike[str], *, layers: int) -> Path:
    """Write a model folder with the first layers of a checkpoint, made of seeded weights.

    Widths, heads, experts, quantisation, tokenizer and code are the checkpoint's own; so an
    engine runs its kernels, its communication and its cache pages on it without reading half a
    terabyte. No weight of the checkpoint is read.

    Args:
        source: A checkpoint of Kimi-K2.5's family.
        directory: Folder to create.
        layers: Decoder layers to keep, one of them with experts.

    Returns:
        The folder.

    Raises:
        UsageError: As :func:`harness.models.read`, or ``models.bad-option``: so many layers
            cannot be kept.
        NotComparable: ``models.unknown-family``.
        Refused: ``models.folder-in-use`` or ``models.cannot-write``.
    """
    folder, target = Path(source), Path(directory)
    facts, whole = read(folder), shape_of(folder)
    _check(facts, layers, dense=whole.first_k_dense_replace)
    plan = weights_plan(
        replace(whole, num_hidden_layers=layers),
        key="cut\0" + str(layers),
        prefix=WRAPPER_PREFIX if facts.is_wrapper else "",
        experts="int4" if facts.quantization == "int4" else "dense",
        dtype=facts.dtype,
    )
    config = read_config(folder)
    text = config["text_config"] if facts.is_wrapper else config
    text["num_hidden_layers"] = layers
    try:
        target.mkdir(parents=True)
        for path in _kept(folder):
            shutil.copyfile(path, target / path.name)
        (target / WEIGHTS_PLAN).write_text(json.dumps(plan), encoding="utf-8")
        # Last: without it the folder is no model.
        (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    except FileExistsError as error:
        raise Refused(
            "models.folder-in-use",
            expected="a new folder",
            found="something is there",
            where=str(target),
            next="choose another folder, or remove this one",
        ) from error
    except OSError as error:
        raise Refused(
            "models.cannot-write",
            expected=f"room and permission to write the folder {target}",
            found=f"{type(error).__name__}: {error}",
            where=str(target),
            next="free space or choose another folder",
        ) from error
    return target


def _kept(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in _OWN or path.name.endswith(_WEIGHTS):
            continue
        if path.is_file() and path.stat().st_size <= _LARGEST:
            yield path


def _check(facts: ModelFacts, layers: int, *, dense: int) -> None:
    if not dense < layers <= facts.num_layers:
        raise UsageError(
            "models.bad-option",
            expected=f"{dense + 1} to {facts.num_layers} layers, so that one has experts",
            found=str(layers),
            where="layers",
            next="give another number of layers",
        )
    if facts.quantization not in _QUANTIZATIONS or facts.dtype not in _DTYPES:
        raise NotComparable(
            "models.unknown-family",
            expected="weights in float32 or bfloat16, experts dense or INT4 as Kimi-K2.5's",
            found=f"{facts.dtype}, quantization {facts.quantization}",
            where=str(facts.path / "config.json"),
            next="give a checkpoint of Kimi-K2.5's family, or a profile",
        )
