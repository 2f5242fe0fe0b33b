"""Device memory that is neither weights nor cache: a step's tensors and the libraries' own."""

from __future__ import annotations

from harness.estimate._terms import Term
from harness.estimate._units import GIB, MIB
from harness.models import KimiShape

# Full-width rows alive at a layer's peak: stream, residual, normed input, its quantised twin or
# copy, the layer's output and the reduced sum.
_STREAMS = 6
# What the counted tensors miss, fitted to the one measurement there is.
_FIT = 1.35
# Sampling holds logits as float32, two copies of them and the sorted indices.
_SAMPLER_BYTES = 20
_CONTEXT = 524 * MIB
_NCCL = 1 * GIB
_WORKSPACE_MOST = 64 * 1024
_MEASURED = "3.1 to 3.2 GiB measured at 8,192 tokens, TP=1 (H200, vLLM 0.26)"


def step_term(
    shape: KimiShape, tensor_parallel_size: int, *, tokens: int, sequences: int, width: int
) -> Term:
    """Return the peak of one forward pass, which vLLM finds by running one.

    Experts' outputs are full rows on every rank, one for each chosen expert, so more ranks
    make the peak little smaller.

    Args:
        shape: Sizes of the model.
        tensor_parallel_size: Ranks.
        tokens: ``max_num_batched_tokens``.
        sequences: ``max_num_seqs``.
        width: Bytes of a value.
    """
    inner = 3 * shape.moe_intermediate_size // tensor_parallel_size
    experts = shape.num_experts_per_tok * (shape.hidden_size + inner)
    heads = shape.num_attention_heads // tensor_parallel_size
    query = shape.qk_nope_head_dim + shape.qk_rope_head_dim
    attention = heads * (2 * query + shape.qk_nope_head_dim + 2 * shape.v_head_dim)
    dense = 3 * shape.intermediate_size // tensor_parallel_size
    values = _STREAMS * shape.hidden_size + max(experts, attention, dense)
    forward = int(_FIT * tokens * values * width)
    sampler = sequences * shape.vocab_size * _SAMPLER_BYTES
    source = f"rows of a layer at its peak x {_FIT}; {_MEASURED}"
    return Term("one step's tensors", max(forward, sampler), source, "rule of thumb")


def captured_term(capture: str, *, columns: int, hidden: int, tokens: int, width: int) -> Term:
    """Return the captured rows of one step on the device, beside what the step itself needs.

    Args:
        capture: ``native`` or ``patched``.
        columns: Depths that the engine captures.
        hidden: Width of a row.
        tokens: ``max_num_batched_tokens``.
        width: Bytes of a value.
    """
    rows = columns * hidden * tokens * width
    if capture == "native":
        source = "columns x tokens; 0.33 of these 0.44 GiB measured at TP=1"
        return Term("captured rows of a step", rows, source, "rule of thumb")
    source = "columns x tokens, kept and stacked; rank 0, after vLLM has measured its peak"
    return Term("captured rows of a step", 2 * rows, source, "rule of thumb")


def library_terms(tensor_parallel_size: int) -> tuple[Term, ...]:
    """Return what CUDA and NCCL take before vLLM looks at what is free."""
    nccl = _NCCL if tensor_parallel_size > 1 else 0
    return (
        Term("CUDA context", _CONTEXT, "measured on an H200, CUDA 13", "measured"),
        Term("NCCL buffers", nccl, "not measured: a bound for ranks of one host", "rule of thumb"),
    )


def prefill_term(shape: KimiShape, *, max_model_len: int, sequences: int, width: int) -> Term:
    """Return the buffer that gathers earlier chunks of a prompt.

    Args:
        shape: Sizes of the model.
        max_model_len: Tokens of the longest request.
        sequences: ``max_num_seqs``.
        width: Bytes of a value.
    """
    rows = min(max(8 * max_model_len, 4 * sequences * 16), _WORKSPACE_MOST)
    size = rows * (shape.kv_lora_rank + shape.qk_rope_head_dim) * width
    return Term("latent prefill buffer", size, "read in 0.32: 8 requests, at most 65,536", "exact")
