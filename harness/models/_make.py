"""Making a model folder: all of it or nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from harness.errors import Refused, UsageError
from harness.models._at_load import WEIGHTS_PLAN
from harness.models._kimi import PROFILES, KimiShape, Profile
from harness.models._recipe import Recipe, record_of
from harness.models._write import plan_of, write_json, write_texts, write_weights

RECIPE_FILE = "harness-model.json"
"""Written last into a made folder: what it was made from, and each file's size."""

_ARCHITECTURES = ("wrapper", "plain")
_EXPERTS = ("dense", "int4", "int4-twin")
_DTYPES = ("float32", "bfloat16")


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
    wanted = record_of(recipe)
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
        write_texts(scratch, recipe, shape, tokenizer=tokenizer)
        if recipe.weights == "files":
            write_weights(scratch, recipe, shape)
        else:
            write_json(scratch / WEIGHTS_PLAN, plan_of(recipe, shape))
        sizes = {path.name: path.stat().st_size for path in sorted(scratch.iterdir())}
        write_json(scratch / RECIPE_FILE, {"recipe": record_of(recipe), "files": sizes})
        scratch.replace(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
