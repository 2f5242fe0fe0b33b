"""What figures belong to: two sets of runs are compared only where all of this is equal."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

ABSENT: Final = "absent"
"""Stands for a package that is not installed, which is a fact; None stands for not known."""

_SLUG = 40


@dataclass(frozen=True)
class Key:
    """Everything that decides a speed and is known before a run.

    A field that is None is not known; such a key is equal to no other, not even to itself.

    Attributes:
        gpu: Name of the card as the driver says it, such as ``NVIDIA H200``.
        gpus: How many of them the engine could use; they share the host's processors and disks.
        tensor_parallel_size: Workers that share the model.
        vllm: Version.
        torch: Version.
        speculators: Version, or :data:`ABSENT`.
        model: A profile in words (see :func:`harness.baseline.model_name`), or a fingerprint.
        capture: ``native``, ``patched``, or ``none`` for an engine without one.
        dtype: What the engine computes in.
        token_budget: Tokens of one scheduler step.
        workload: Prompts, depths and target of the files, in words.
    """

    gpu: str | None
    gpus: int | None
    tensor_parallel_size: int | None
    vllm: str | None
    torch: str | None
    speculators: str | None
    model: str | None
    capture: str | None
    dtype: str | None
    token_budget: int | None
    workload: str | None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Fields that are not known."""
        return tuple(name for name, value in self.to_json().items() if value is None)

    @property
    def file_name(self) -> str:
        """Name of the file that holds this key's baseline: readable, and of this key alone."""
        text = json.dumps(self.to_json(), sort_keys=True, ensure_ascii=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        words = f"{self.gpu} x{self.gpus} tp{self.tensor_parallel_size} {self.capture}"
        model = re.sub(r"[^a-z0-9.]+", "-", str(self.model).lower())[:_SLUG].strip("-.")
        slug = re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")
        return f"{slug}-{model}-{digest}.json"

    def to_json(self) -> dict[str, Any]:
        """Return the key as a JSON object."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Key:
        """Read what :meth:`to_json` gave.

        Raises:
            ValueError: A field is missing, unknown, or of another type.
        """
        names = {field.name for field in fields(cls)}
        if names != set(body):
            raise ValueError(f"its key's fields differ: {sorted(names ^ set(body))}")
        for name, value in body.items():
            wanted = int if name in _NUMBERS else str
            if value is not None and type(value) is not wanted:
                raise ValueError(f"key.{name} is {value!r}")
        return cls(**body)

    def __str__(self) -> str:
        said = {name: "?" if value is None else value for name, value in self.to_json().items()}
        said["capture"] = "no" if self.capture == "none" else said["capture"]
        return (
            "{gpus} x {gpu}, tp {tensor_parallel_size}, vllm {vllm}, torch {torch}, speculators "
            "{speculators}, {model}, {capture} capture, {dtype}, budget {token_budget}, {workload}"
        ).format_map(said)


_NUMBERS = ("gpus", "tensor_parallel_size", "token_budget")


@dataclass(frozen=True)
class Difference:
    """One field that keeps two keys apart."""

    field: str
    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.field}: {self.ours} here, {self.theirs} recorded"


def differences(ours: Key, theirs: Key) -> tuple[Difference, ...]:
    """Return the fields by which two keys differ; what is not known differs from everything."""
    mine, other = ours.to_json(), theirs.to_json()
    return tuple(
        Difference(name, _shown(value), _shown(other[name]))
        for name, value in mine.items()
        if value is None or value != other[name]
    )


def _shown(value: Any) -> str:
    return "not known" if value is None else str(value)
