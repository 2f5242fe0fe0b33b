"""What a user may ask of an extraction."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.capture.session import Deadlines
from harness.errors import UsageError

CaptureChoice = Literal["auto", "native", "patched", "none"]


def capture_choice(name: str, where: str) -> CaptureChoice:
    """Return a capture by the name that a user gave.

    Raises:
        UsageError: ``extract.unknown-capture``.
    """
    choices: tuple[CaptureChoice, ...] = ("auto", "native", "patched")
    for choice in choices:
        if choice == name:
            return choice
    raise UsageError(
        "extract.unknown-capture",
        expected="auto, native or patched",
        found=name,
        where=where,
        next="leave it out: auto takes what the installed vLLM can do",
    )


@dataclass(frozen=True)
class EngineOptions:
    """How to load an engine; shared by extraction, fixtures and doctor.

    Attributes:
        model: Checkpoint folder.
        layers: Layer ids such as ``1,3,6``, or a preset.
        dialect: How ``layers`` counts.
        layout: ``training`` (depth L last) or ``raw`` (as asked).
        capture: ``native``, ``patched``, ``none``, or ``auto`` for what the release can do.
        dtype: ``auto`` (the checkpoint's), ``float32`` or ``bfloat16``.
        tensor_parallel_size: Workers that share the model.
        max_model_len: Longest request in tokens, its one output token included.
        max_num_batched_tokens: Tokens of one scheduler step.
        max_num_seqs: Requests in flight.
        gpu_memory_utilization: Share of each GPU's memory.
        use_mla: Force latent attention on or off; None takes it where the release has it.
        python: Interpreter that has the engine.
        deadlines: Limits in seconds.
        skip_gate: Load a vLLM also where its files show that the capture cannot work.
    """

    model: Path
    layers: str = "speculators-0.9"
    dialect: str = "vllm"
    layout: str = "training"
    capture: CaptureChoice = "auto"
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float = 0.85
    use_mla: bool | None = None
    python: Path = field(default_factory=lambda: Path(sys.executable))
    deadlines: Deadlines = field(default_factory=Deadlines)
    skip_gate: bool = False


@dataclass(frozen=True)
class ExtractOptions:
    """One extraction.

    Attributes:
        engine: How to load the engine.
        prompts: JSONL, dataset folder, or conversations.
        out: Output folder.
        truncate: Cut prompts that are too long instead of refusing them.
        spot_check_every: Rebuild the log-probabilities of one sample in so many; 0 for none.
        trust_remote_code: Let a tokenizer run code that lies in the checkpoint.
        batch_tokens: Tokens handed to the engine at once; 0 chooses.
    """

    engine: EngineOptions
    prompts: Path
    out: Path
    truncate: bool = False
    spot_check_every: int = 64
    trust_remote_code: bool = False
    batch_tokens: int = 0

    def __post_init__(self) -> None:
        if self.spot_check_every < 0 or self.batch_tokens < 0:
            raise UsageError(
                "extract.negative-option",
                expected="0 or more",
                found=f"{min(self.spot_check_every, self.batch_tokens)}",
                where="--spot-check-every / --batch-tokens",
                next="harness extract --help",
            )
