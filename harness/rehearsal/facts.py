"""What a rehearsal found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

UNPROVED = (
    "the checkpoint's own weights, and the layers left out",
    "memory: other layers' weights leave less for the cache (harness plan)",
    "the time of the load",
)
"""What only the whole load shows."""


@dataclass(frozen=True)
class Rehearsal:
    """An engine of the checkpoint's width, cut to a few layers, that did the job.

    Attributes:
        layers: Layers that it kept.
        of_layers: Layers of the checkpoint.
        depths: Depth of each column that it captured: as many as the load will, in its order.
        capture: ``native`` or ``patched``.
        workers: Tensor-parallel workers that took part.
        hidden_size: Width of each row.
        dtype: Dtype of each row.
        runner: Module of the model runner.
        attention: Class of the attention implementation.
        experts: Quantisation methods in use, by class.
        block_size: Tokens of a cache block.
        seconds: Of the whole rehearsal.
        load_seconds: Of import and load.
        samples: Samples captured after the canary.
        tokens: Their tokens.
        tokens_per_s: Their speed with files whole; of a cut model, so no forecast.
        bytes: Bytes written to the disk of the output.
    """

    layers: int
    of_layers: int
    depths: tuple[int, ...]
    capture: str
    workers: int
    hidden_size: int
    dtype: str
    runner: str
    attention: str
    experts: tuple[str, ...]
    block_size: int | None
    seconds: float
    load_seconds: float
    samples: int
    tokens: int
    tokens_per_s: float
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the rehearsal as a flat JSON object, with what it leaves unproved."""
        return {**asdict(self), "unproved": list(UNPROVED)}

    def summary(self) -> str:
        """Return it in one line."""
        return (
            f"rehearsed in {self.seconds:.0f} s: {self.layers} of {self.of_layers} layers at full "
            f"width, {self.workers} worker{'s' * (self.workers > 1)}, {self.capture} capture, "
            f"canary passed, {self.samples} samples"
        )

    def explain(self) -> str:
        """Return it in lines for a terminal."""
        rows = {
            "depths": f"{', '.join(map(str, self.depths))} ({self.hidden_size} {self.dtype} each)",
            "runs on": ", ".join(filter(None, (self.runner, self.attention, *self.experts))),
            "cache": f"blocks of {self.block_size} tokens",
            "written": f"{self.samples} samples, {self.tokens:,} tokens, {self.bytes / 1e6:.1f} MB",
            "load": f"{self.load_seconds:.0f} s",
        }
        lines = [self.summary(), *(f"  {name:8} {text}" for name, text in rows.items())]
        return "\n".join([*lines, "  not rehearsed: " + "; ".join(UNPROVED)])
