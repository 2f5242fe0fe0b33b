"""Making a model folder: all of it or nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import Refused, UsageError
from harness.models import _safetensors
from harness.models._at_load import WEIGHTS_PLAN, weights_plan
from harness.models._config import (
    CONFIG_FILE,
    IMAGE_PROCESSOR_FILE,
    plain_config,
    wrapper_config,
)
from harness.models._int4 import dequantise, quantise
from harness.models._kimi import PROFILES, KimiShape, Profile
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

RECIPE_FILE = "harness-model.json"
"""Written last into a made folder: what it was made from, and each file's size."""

_FORMAT = 2  # raise when the same options give other bytes
_ARCHITECTURES = ("wrapper", "plain")
_EXPERTS = ("dense", "int4", "int4-twin")
_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the bytes of a made model.

    Attributes:
        profile: Name in :data:`harness.models.PROFILES`.
        seed: Chooses the weights.
        architecture: ``wrapper`` (KimiK25ForConditionalGeneration) or ``plain``
            (DeepseekV3ForCausalLM with the same text weights).
        experts: ``dense``, ``int4`` (packed routed experts) or ``int4-twin`` (dense weights that
            hold exactly what the packed ones stand for).
        dtype: ``float32`` or ``bfloat16``.
        layers: Number of decoder layers.
        format: Version of the maker.
        weights: ``files``, or ``load`` for a plan from which they are made at load.
    """

    profile: str
    seed: int
    architecture: str
    experts: str
    dtype: str
    layers: int
    format: int = _FORMAT
    weights: str = "files"


def make(
    profile: str,
    directory: str | os.PathLike[str],
    *,
    seed: int = 0,
    architecture: str = "wrapper",
    experts: str | None = None,
    dtype: str | None = None,
    layers: int | None = None,
    weights: str | None = None,
) -> Path:
    """Write a model folder of a profile, deterministic by its arguments.

    The folder appears complete or not at all. Making the same model into its own folder again
    changes nothing.

    Args:
        profile: ``kimi-k2.5-tiny`` (complete checkpoint) or ``kimi-k2.5-slice`` (real width,
            weights made at load).
        directory: Folder to create; its parent is created too.
        seed: Chooses the weights.
        architecture: ``wrapper`` or ``plain``.
        experts: ``dense``, ``int4`` or ``int4-twin``; by default the profile's own form.
        dtype: ``float32`` or ``bfloat16``; by default the profile's own.
        layers: Number of decoder layers; by default the profile's own.
        weights: ``files``, or ``load``: a plan from which each engine makes the same weights;
            by default the profile's own way.

    Returns:
        The folder.

    Raises:
        UsageError: An argument is not among the known ones.
        Refused: The folder holds something else, or it cannot be written.
    """
    known = _profile(profile)
    recipe = Recipe(
        profile=profile,
        seed=seed,
        architecture=_choice("architecture", architecture, _ARCHITECTURES),
        experts=_choice("experts", experts or known.experts, _EXPERTS),
        dtype=_choice("dtype", dtype or known.dtype, _DTYPES),
        layers=known.shape.num_hidden_layers if layers is None else layers,
        weights=_weights_choice(known, weights),
    )
    if recipe.layers <= known.shape.first_k_dense_replace:
        raise UsageError(
            "models.bad-option",
            expected=f"more than {known.shape.first_k_dense_replace} layers, so that one has "
            "experts",
            found=f"{recipe.layers}",
            where="layers",
            next="give a larger number of layers",
        )
    target = Path(directory)
    if _holds(target, recipe):
        return target
    shape = replace(known.shape, num_hidden_layers=recipe.layers)
    try:
        _publish(target, recipe, shape, tokenizer=known.makes == "checkpoint")
    except OSError as error:
        raise Refused(
            "models.cannot-write",
            expected=f"room and permission to write the folder {target}",
            found=f"{type(error).__name__}: {error}",
            where=str(target),
            next="free space or choose another folder",
        ) from error
    return target


def _profile(name: str) -> Profile:
    profile = PROFILES.get(name)
    if profile is None:
        raise UsageError(
            "models.unknown-profile",
            expected="one of " + ", ".join(PROFILES),
            found=name,
            where="profile",
            next="harness model make --help",
        )
    if profile.makes == "nothing":
        raise UsageError(
            "models.facts-only",
            expected="a profile that can be made: "
            + ", ".join(p.name for p in PROFILES.values() if p.makes != "nothing"),
            found=f"{name}, which is known by its facts only",
            where="profile",
            next=f"harness model make {name}-tiny DIR",
        )
    return profile


def _choice(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise UsageError(
            "models.bad-option",
            expected="one of " + ", ".join(allowed),
            found=value,
            where=option,
            next="harness model make --help",
        )
    return value


def _weights_choice(known: Profile, asked: str | None) -> str:
    choice = asked or ("files" if known.makes == "checkpoint" else "load")
    allowed = ("files", "load") if known.makes == "checkpoint" else ("load",)
    return _choice("weights", choice, allowed)


def _holds(target: Path, recipe: Recipe) -> bool:
    """Tell whether the folder already is this model; refuse when it is something else."""
    if not target.exists():
        return False
    if not target.is_dir():
        found = "a file of that name"
    elif not any(target.iterdir()):
        return False
    else:
        found = _difference(target, recipe)
        if not found:
            return True
    raise Refused(
        "models.folder-in-use",
        expected="a folder that is new, empty, or holds this very model",
        found=found,
        where=str(target),
        next="choose another folder, or remove this one",
    )


def _difference(target: Path, recipe: Recipe) -> str:
    try:
        record = json.loads((target / RECIPE_FILE).read_text())
        made, files = dict(record["recipe"]), dict(record["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"files that this program did not make (no readable {RECIPE_FILE})"
    wanted = _record(recipe)
    other = [f"{key} {made.get(key)}" for key in wanted if made.get(key) != wanted[key]]
    if other:
        return "another model: " + ", ".join(other)
    for name, size in files.items():
        path = target / name
        if not path.is_file() or path.stat().st_size != size:
            return f"this model, but {name} is missing or of another size"
    return ""


def _publish(target: Path, recipe: Recipe, shape: KimiShape, *, tokenizer: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".part", dir=target.parent))
    try:
        scratch.chmod(0o755)  # mkdtemp's 0700 would follow the rename
        _write_texts(scratch, recipe, shape, tokenizer=tokenizer)
        if recipe.weights == "files":
            _write_weights(scratch, recipe, shape)
        else:
            _write_json(scratch / WEIGHTS_PLAN, _plan(recipe, shape))
        sizes = {path.name: path.stat().st_size for path in sorted(scratch.iterdir())}
        _write_json(scratch / RECIPE_FILE, {"recipe": _record(recipe), "files": sizes})
        scratch.replace(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _record(recipe: Recipe) -> dict[str, Any]:
    """The recipe as files keep it; what is as it always was is left out."""
    record = asdict(recipe)
    if recipe.weights == "files":
        del record["weights"]
    return record


def _plan(recipe: Recipe, shape: KimiShape) -> dict[str, Any]:
    return weights_plan(
        shape,
        key=f"{recipe.profile}\0{recipe.seed}",
        prefix=WRAPPER_PREFIX if recipe.architecture == "wrapper" else "",
        experts="int4" if recipe.experts == "int4" else "dense",
        dtype=recipe.dtype,
    )


def _write_texts(folder: Path, recipe: Recipe, shape: KimiShape, *, tokenizer: bool) -> None:
    int4 = recipe.experts == "int4"
    if recipe.architecture == "plain":
        config = plain_config(shape, dtype=recipe.dtype, int4=int4)
    else:
        config = wrapper_config(shape, dtype=recipe.dtype, int4=int4)
        _write_json(folder / "preprocessor_config.json", preprocessor_config(shape))
        (folder / IMAGE_PROCESSOR_FILE).write_text(IMAGE_PROCESSOR_CODE)
        (folder / CONFIG_FILE).write_text(CONFIG_CODE)
    _write_json(folder / "config.json", config)
    if tokenizer:
        _write_json(folder / "tokenizer.json", tokenizer_json(shape))
        _write_json(folder / "tokenizer_config.json", tokenizer_config(shape))


def _write_weights(folder: Path, recipe: Recipe, shape: KimiShape) -> None:
    prefix = WRAPPER_PREFIX if recipe.architecture == "wrapper" else ""
    specs = [(prefix, spec) for spec in text_tensors(shape)]
    if recipe.architecture == "wrapper":
        specs += [("", spec) for spec in vision_tensors(shape)]
    shards = _shards(specs, shape)
    # The recipe in each header sets models of unlike seeds apart, by header alone.
    metadata = {"format": "pt", "harness": json.dumps(_record(recipe), sort_keys=True)}
    index: dict[str, str] = {}
    total = 0
    for number, members in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):06d}.safetensors"  # Kimi's own pattern
        blobs = [blob for prefix, spec in members for blob in _blobs(prefix, spec, recipe)]
        index.update({blob.name: name for blob in blobs})
        total += _safetensors.write(folder / name, blobs, metadata)
    _write_json(
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


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
