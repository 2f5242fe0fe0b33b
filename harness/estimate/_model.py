"""The model that an estimate is about: sizes, form of the weights, bytes on disk."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from harness import models
from harness.errors import NotComparable, UsageError
from harness.models import PROFILES, KimiShape, StoredTensor, stored_tensors

WIDTH = {"float32": 4, "bfloat16": 2}
"""Bytes of a value by dtype."""


@dataclass(frozen=True)
class Model:
    """One model.

    Attributes:
        name: A profile, or the folder's name.
        shape: Its sizes.
        wrapper: Whether it has Kimi's vision tower around it.
        int4: Whether the routed experts are packed INT4.
        dtype: dtype of the checkpoint: ``float32`` or ``bfloat16``.
        at_load: Whether weights are made at load, so that nothing is read.
        files: Bytes of the weights' files on this disk; None where they are not here.
    """

    name: str
    shape: KimiShape
    wrapper: bool
    int4: bool
    dtype: str
    at_load: bool = False
    files: int | None = None

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """Every tensor of its checkpoint."""
        return stored_tensors(self.shape, wrapper=self.wrapper, int4=self.int4, dtype=self.dtype)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of all tensors, without the files' headers."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def read_bytes(self) -> int:
        """Bytes that a load reads from disk: the files', else the tensors', else none."""
        if self.at_load:
            return 0
        return self.checkpoint_bytes if self.files is None else self.files

    def with_layers(self, layers: int) -> Model:
        """Return the same model cut or grown to so many decoder layers.

        Raises:
            UsageError: ``estimate.too-few-layers``.
        """
        if layers <= self.shape.first_k_dense_replace:
            raise UsageError(
                "estimate.too-few-layers",
                expected=f"more than {self.shape.first_k_dense_replace}, so that one has experts",
                found=str(layers),
                where="--num-layers",
                next="give a larger number",
            )
        return replace(self, shape=replace(self.shape, num_hidden_layers=layers), files=None)


def profile_model(name: str) -> Model:
    """Return the model of a profile, as ``harness model make`` or its source would write it.

    Raises:
        UsageError: ``models.unknown-profile``.
    """
    profile = PROFILES.get(name)
    if profile is None:
        raise UsageError(
            "models.unknown-profile",
            expected="one of " + ", ".join(PROFILES),
            found=name,
            where="--profile",
            next="take one of these, or name a checkpoint's folder with --model",
        )
    return Model(
        name=name,
        shape=profile.shape,
        wrapper=True,
        int4=profile.experts == "int4",
        dtype=profile.dtype,
        at_load=profile.makes == "config",
    )


def folder_model(path: str | os.PathLike[str]) -> Model:
    """Return the model in a checkpoint folder; only its configuration and file sizes are read.

    Raises:
        UsageError: As :func:`harness.models.read`.
        NotComparable: ``models.unknown-family``, or ``estimate.unknown-weights`` for a
            quantisation or dtype whose sizes are not known here.
    """
    folder = Path(path)
    facts = models.read(folder)
    if facts.quantization not in (None, "int4") or facts.dtype not in WIDTH:
        raise NotComparable(
            "estimate.unknown-weights",
            expected="float32 or bfloat16 weights, with INT4 experts or unquantised",
            found=f"{facts.dtype}, quantisation {facts.quantization}",
            where=str(folder),
            next="give a checkpoint in Kimi-K2.5's form",
        )
    files = [file.stat().st_size for file in sorted(folder.glob("*.safetensors"))]
    return Model(
        name=folder.name,
        shape=models.shape_of(folder),
        wrapper=facts.is_wrapper,
        int4=facts.quantization == "int4",
        dtype=facts.dtype,
        at_load=facts.weights_at_load,
        files=sum(files) if files else None,
    )
