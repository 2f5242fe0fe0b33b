"""What a run is: the facts in ``run.json`` and the fingerprint that decides a resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.dataset._files import digest

RUN_FILE = "run.json"
SCHEMA = 1


@dataclass(frozen=True)
class RunIdentity:
    """The facts that decide what the bytes of a sample mean and hold.

    Two runs may share a folder only when all of these are equal. What is in, and why:

    * ``model``: other weights give other states.
    * ``depths``: columns of the file, in file order.
    * ``layout``: ``training`` promises that the last column is depth L, ``raw`` does not.
    * ``dtype``: one dtype a dataset; a mixture cannot be batched.
    * ``prompts``: ids, masks, names and order; it is taken after any cut, so ``--truncate``
      and the length limit need no field of their own.
    * ``capture``, ``vllm``, ``patches``: they should not change the values, but when one of
      them is found wrong later, a folder must be wholly right or wholly wrong.

    What is not in: tensor-parallel size, batch sizes, chunking and memory settings (they must
    not change content, which tests prove, and a run may be resumed on another machine);
    paths and times (a moved model is the same model); versions of other libraries (recorded
    for each session in ``run.json``).

    Attributes:
        model: The model's fingerprint.
        depths: Depth of each column, in file order.
        layout: ``training`` or ``raw``.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        capture: ``native`` or ``patched``.
        vllm: The engine's version; empty where it cannot be known before the start.
        patches: Ids of the patches in force, sorted.
        prompts: The prompts' fingerprint.
    """

    model: str
    depths: tuple[int, ...]
    layout: str
    dtype: str
    capture: str
    prompts: str
    vllm: str = ""
    patches: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the identity as a JSON object."""
        return {
            "model": self.model,
            "depths": list(self.depths),
            "layout": self.layout,
            "dtype": self.dtype,
            "capture": self.capture,
            "vllm": self.vllm,
            "patches": sorted(self.patches),
            "prompts": self.prompts,
        }

    @property
    def fingerprint(self) -> str:
        """``blake3:<hex>`` over the identity."""
        return digest(_canonical({"schema": SCHEMA, **self.to_json()}))


@dataclass(frozen=True)
class RunInfo:
    """A run's identity and everything else worth keeping about it.

    Attributes:
        identity: What decides a resume.
        model_path: Where the model was.
        layers: The layer plan, ``plan.to_json()``.
        hidden_size: Width of a row.
        versions: Package name to version, as the engine reported them.
        engine: Engine settings as resolved.
    """

    identity: RunIdentity
    model_path: str
    layers: Mapping[str, Any]
    hidden_size: int
    versions: Mapping[str, str] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        """Number of depths in a sample."""
        return len(self.identity.depths)


def encode_run(body: Mapping[str, Any]) -> bytes:
    """Return ``run.json`` as bytes: canonical JSON that carries a checksum of itself."""
    content = {key: value for key, value in body.items() if key != "checksum"}
    content["checksum"] = digest(_canonical(content))
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=True).encode() + b"\n"


def read_run(folder: Path) -> dict[str, Any]:
    """Read ``run.json`` and hold it to its own checksum.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read.
        ValueError: It is broken, was edited, or has another schema version.
    """
    return parse_run((folder / RUN_FILE).read_bytes())


def parse_run(data: bytes) -> dict[str, Any]:
    """Read the bytes of a ``run.json``.

    Raises:
        ValueError: They are broken, were edited, or have another schema version.
    """
    body: Any = json.loads(data)
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    if body.get("schema") != SCHEMA:
        raise ValueError(f"schema {body.get('schema')!r}; this version reads schema {SCHEMA}")
    # Comparing the bytes and not only the digest also finds damage that JSON would hide,
    # such as a changed letter in the case of an escape.
    if encode_run(body) != data:
        raise ValueError("its content does not match its own checksum")
    return body


def differences(ours: RunIdentity, theirs: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return ``(field, ours, theirs)`` for each field of the identity that differs."""
    mine = ours.to_json()
    return [
        (name, _plain(value), _plain(theirs.get(name, "nothing")))
        for name, value in mine.items()
        if theirs.get(name, "nothing") != value
    ]


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    # A digest is told apart by its first digits; the rest only hides the message.
    return text[:19] if text.startswith("blake3:") else text or "unknown"


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()
