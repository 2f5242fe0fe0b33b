"""The settings of an engine that decide its memory."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import UsageError
from harness.estimate._model import WIDTH, Model


@dataclass(frozen=True)
class EngineSize:
    """The settings of an engine that decide its memory.

    Attributes:
        tensor_parallel_size: Ranks, one a device.
        capture: ``native``, ``patched`` or ``none``.
        columns: Depths that the engine captures, depth L for the canary counted.
        written: Depths in a sample's file.
        dtype: ``float32``, ``bfloat16``, or ``auto`` for the checkpoint's.
        gpu_memory_utilization: Share of a device that vLLM may take.
        max_model_len: Tokens of the longest request, its one output token included.
        max_num_batched_tokens: Tokens of one step.
        max_num_seqs: Requests in flight.
        vision: Whether the vision tower is built.
    """

    tensor_parallel_size: int = 1
    capture: str = "native"
    columns: int = 4
    written: int = 4
    dtype: str = "auto"
    gpu_memory_utilization: float = 0.85
    max_model_len: int = 8192
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    vision: bool = False


def run_dtype(model: Model, engine: EngineSize) -> str:
    """Return the dtype that the engine runs in.

    Raises:
        UsageError: ``estimate.dtype``.
    """
    dtype = model.dtype if engine.dtype == "auto" else engine.dtype
    if dtype not in WIDTH:
        raise UsageError(
            "estimate.dtype",
            expected="auto, float32 or bfloat16",
            found=dtype,
            where="--dtype",
            next="leave it out: auto is the checkpoint's own",
        )
    return dtype
