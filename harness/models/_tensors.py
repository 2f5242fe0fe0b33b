"""Every tensor of a Kimi-shaped checkpoint: name, shape, and how its values are spread.

Names and shapes are those of the released checkpoint (see :mod:`harness.models._kimi`); for
the full profile the list counts its 208,550 tensors. The spread is ours: it only matters for
models made here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from harness.models._int4 import GROUP_SIZE
from harness.models._kimi import KimiShape

WRAPPER_PREFIX = "language_model."


class Kind(Enum):
    """How the values of a tensor are made."""

    MATRIX = "matrix"
    EXPERT = "expert"  # a matrix whose rows and groups differ in size, so that scales matter
    NORM = "norm"
    BIAS = "bias"
    CORRECTION = "correction"  # the router's e_score_correction_bias


@dataclass(frozen=True)
class TensorSpec:
    """One tensor.

    Attributes:
        name: Name in the checkpoint.
        shape: Its extents.
        kind: How its values are made.
        spread: Standard deviation of a matrix or bias.
        shard: Sorting key of the shard that holds it (layer number; big for what is outside).
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    spread: float = 0.0


# The spreads below keep the residual stream of random weights in a sane range: it starts at
# a standard deviation near 2 and each layer changes it by a third to a half, so that layers are
# far apart while rounding is not blown up (float32 against float64: 1.3e-6 at depth L).
_GAIN_EMBED = 2.0
_GAIN_QUERY = 0.9
_GAIN_LATENT = 1.0
_GAIN_VALUE = 1.0
_GAIN_ATTENTION_OUT = 1.0
_GAIN_MLP_IN = 1.2
_GAIN_MLP_OUT = 0.8
_GAIN_ROUTED_OUT = 0.4
_GAIN_ROUTER = 8.0
_GAIN_HEAD = 2.0


def text_tensors(shape: KimiShape, *, one_expert: bool = False) -> Iterator[TensorSpec]:
    """Yield the tensors of the text model, under the names of ``DeepseekV3ForCausalLM``.

    Args:
        shape: Sizes of the model.
        one_expert: Name only the first expert of each layer; the others are like it.

    Yields:
        Specifications in the order of the layers; experts in their dense form.
    """
    hidden, vocab = shape.hidden_size, shape.vocab_size
    yield _matrix("model.embed_tokens.weight", (vocab, hidden), _GAIN_EMBED, fan_in=1)
    for layer in range(shape.num_hidden_layers):
        yield from _layer(shape, layer, 1 if one_expert else shape.n_routed_experts)
    yield TensorSpec("model.norm.weight", (hidden,), Kind.NORM)
    yield _matrix("lm_head.weight", (vocab, hidden), _GAIN_HEAD)


def _layer(shape: KimiShape, layer: int, named_experts: int) -> Iterator[TensorSpec]:
    prefix = f"model.layers.{layer}."
    yield TensorSpec(f"{prefix}input_layernorm.weight", (shape.hidden_size,), Kind.NORM)
    yield from _attention(shape, f"{prefix}self_attn.")
    yield TensorSpec(f"{prefix}post_attention_layernorm.weight", (shape.hidden_size,), Kind.NORM)
    if layer < shape.first_k_dense_replace:
        yield from _mlp(f"{prefix}mlp.", shape.hidden_size, shape.intermediate_size)
        return
    experts = shape.n_routed_experts
    yield _matrix(f"{prefix}mlp.gate.weight", (experts, shape.hidden_size), _GAIN_ROUTER)
    yield TensorSpec(f"{prefix}mlp.gate.e_score_correction_bias", (experts,), Kind.CORRECTION)
    for expert in range(named_experts):
        for spec in _mlp(
            f"{prefix}mlp.experts.{expert}.",
            shape.hidden_size,
            shape.moe_intermediate_size,
            gain_out=_GAIN_ROUTED_OUT,
        ):
            yield replace(spec, kind=Kind.EXPERT)
    yield from _mlp(
        f"{prefix}mlp.shared_experts.",
        shape.hidden_size,
        shape.moe_intermediate_size * shape.n_shared_experts,
    )


def _attention(shape: KimiShape, prefix: str) -> Iterator[TensorSpec]:
    heads, hidden = shape.num_attention_heads, shape.hidden_size
    query_dim = shape.qk_nope_head_dim + shape.qk_rope_head_dim
    latent, rope = shape.kv_lora_rank, shape.qk_rope_head_dim
    value = shape.qk_nope_head_dim + shape.v_head_dim
    yield _matrix(f"{prefix}q_a_proj.weight", (shape.q_lora_rank, hidden), _GAIN_LATENT)
    yield TensorSpec(f"{prefix}q_a_layernorm.weight", (shape.q_lora_rank,), Kind.NORM)
    yield _matrix(f"{prefix}q_b_proj.weight", (heads * query_dim, shape.q_lora_rank), _GAIN_QUERY)
    yield _matrix(f"{prefix}kv_a_proj_with_mqa.weight", (latent + rope, hidden), _GAIN_LATENT)
    yield TensorSpec(f"{prefix}kv_a_layernorm.weight", (latent,), Kind.NORM)
    yield _matrix(f"{prefix}kv_b_proj.weight", (heads * value, latent), _GAIN_VALUE)
    yield _matrix(f"{prefix}o_proj.weight", (hidden, heads * shape.v_head_dim), _GAIN_ATTENTION_OUT)


def _mlp(
    prefix: str, hidden: int, inner: int, *, gain_out: float = _GAIN_MLP_OUT
) -> Iterator[TensorSpec]:
    yield _matrix(f"{prefix}gate_proj.weight", (inner, hidden), _GAIN_MLP_IN)
    yield _matrix(f"{prefix}up_proj.weight", (inner, hidden), _GAIN_MLP_IN)
    yield _matrix(f"{prefix}down_proj.weight", (hidden, inner), gain_out)


def vision_tensors(shape: KimiShape) -> Iterator[TensorSpec]:
    """Yield the tensors of the vision tower and its projector (wrapper only).

    Args:
        shape: Sizes of the model.

    Yields:
        Specifications; text-only engines leave these tensors unread.
    """
    vision = shape.vision
    width, inner = vision.hidden_size, vision.intermediate_size
    tower = "vision_tower."
    patch = vision.patch_size
    yield from _affine(
        f"{tower}patch_embed.proj", (width, 3, patch, patch), fan_in=3 * patch * patch
    )
    grid = vision.position_grid
    yield _matrix(f"{tower}patch_embed.pos_emb.weight", (grid, grid, width), 0.1, fan_in=1)
    for block in range(vision.num_layers):
        prefix = f"{tower}encoder.blocks.{block}."
        yield from _layer_norm(f"{prefix}norm0", width)
        yield from _layer_norm(f"{prefix}norm1", width)
        yield from _affine(f"{prefix}wqkv", (3 * width, width))
        yield from _affine(f"{prefix}wo", (width, width))
        yield from _affine(f"{prefix}mlp.fc0", (inner, width))
        yield from _affine(f"{prefix}mlp.fc1", (width, inner))
    yield from _layer_norm(f"{tower}encoder.final_layernorm", width)
    merged = width * vision.merge_kernel**2
    yield from _layer_norm("mm_projector.pre_norm", width)
    yield from _affine("mm_projector.proj.0", (merged, merged))
    yield from _affine("mm_projector.proj.2", (shape.hidden_size, merged))


def packed_shapes(spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the tensors that replace a routed expert's weight in the INT4 form.

    Args:
        spec: A tensor of kind ``EXPERT``, shape ``[out, in]``.

    Returns:
        Name to (safetensors dtype, shape), in file order.
    """
    out_features, in_features = spec.shape
    return {
        f"{spec.name}_packed": ("I32", (out_features, in_features // 8)),
        f"{spec.name}_scale": ("BF16", (out_features, in_features // GROUP_SIZE)),
        f"{spec.name}_shape": ("I32", (2,)),
    }


def _matrix(
    name: str, shape: tuple[int, ...], gain: float, *, fan_in: int | None = None
) -> TensorSpec:
    spread = gain / math.sqrt(shape[-1] if fan_in is None else fan_in)
    return TensorSpec(name, shape, Kind.MATRIX, spread)


def _affine(
    name: str, shape: tuple[int, ...], *, fan_in: int | None = None
) -> Iterator[TensorSpec]:
    yield _matrix(f"{name}.weight", shape, 0.5, fan_in=fan_in)
    yield TensorSpec(f"{name}.bias", (shape[0],), Kind.BIAS, 0.1)


def _layer_norm(name: str, width: int) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (width,), Kind.NORM)
    yield TensorSpec(f"{name}.bias", (width,), Kind.BIAS, 0.1)
