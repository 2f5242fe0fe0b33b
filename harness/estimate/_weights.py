"""Bytes of weights on one device."""

from __future__ import annotations

import math
from collections import Counter

from harness.estimate._model import WIDTH, Model
from harness.estimate._sharding import rank_values
from harness.estimate._terms import Term
from harness.models import StoredTensor

_PARTS = {
    "experts": "routed experts",
    "attention": "attention",
    "mlp": "dense layer and shared experts",
    "whole": "router and norms",
    "vocabulary": "embedding and head",
}
_TABLE = "tensor table of the released checkpoint, split as vLLM 0.16 and 0.32 do (read)"


def weight_terms(
    model: Model, tensor_parallel_size: int, *, dtype: str, vision: bool = False
) -> tuple[Term, ...]:
    """Return what one device holds of a model's weights, by part.

    Args:
        model: The model.
        tensor_parallel_size: Ranks that share it; one that divides it.
        dtype: What the engine runs in.
        vision: Whether the vision tower is built; a text-only engine leaves it out.
    """
    sizes: Counter[str] = Counter()
    for tensor in model.tensors:
        part = _part(tensor.name)
        if part is not None:
            values = rank_values(tensor, tensor_parallel_size)
            sizes[part] += values * _device_width(tensor, dtype)
    terms = [
        Term(f"{name}{_form(model, part, dtype)}", sizes[part], _TABLE, "exact")
        for part, name in _PARTS.items()
    ]
    terms.append(_absorbed())
    terms.append(_rotary(model, dtype))
    if model.wrapper:
        terms.append(_vision(model, dtype, built=vision))
    return tuple(terms)


def repack_bytes(model: Model, tensor_parallel_size: int) -> int:
    """Return the peak above the weights while a layer's experts are put into kernel order.

    The larger tensor of a layer (gate and up of all experts) exists twice for a moment.
    """
    if not model.int4:
        return 0
    shape = model.shape
    weights = 2 * shape.moe_intermediate_size * shape.hidden_size // tensor_parallel_size
    return shape.n_routed_experts * weights // 2


def _part(name: str) -> str | None:
    if name.startswith(("vision_tower.", "mm_projector.")):
        return None
    if ".mlp.experts." in name:
        return "experts"
    if name.endswith("norm.weight") or ".mlp.gate." in name:
        return "whole"
    if ".self_attn." in name:
        return "attention"
    return "mlp" if ".mlp." in name else "vocabulary"


def _form(model: Model, part: str, dtype: str) -> str:
    return ", INT4 with scales" if part == "experts" and model.int4 else f", {dtype}"


def _device_width(tensor: StoredTensor, dtype: str) -> int:
    # Packed words stay words, the router's correction stays float32; the rest is converted.
    if tensor.dtype == "I32" or tensor.name.endswith("e_score_correction_bias"):
        return 4
    return WIDTH[dtype]


def _absorbed() -> Term:
    source = (
        "views of kv_b_proj where it is not quantised: read in 0.16 and 0.32; 51.03 GiB measured "
        "for 6 layers on an H200 leaves no room for copies (0.09 GiB)"
    )
    return Term("absorbed W_UK and W_UV", 0, source, "measured")


def _rotary(model: Model, dtype: str) -> Term:
    yarn = model.shape.yarn
    rows = int(yarn.original_max_position_embeddings * yarn.factor)
    size = rows * model.shape.qk_rope_head_dim * WIDTH[dtype]
    return Term("rotary table", size, "positions x rotary width, one for all layers", "exact")


def _vision(model: Model, dtype: str, *, built: bool) -> Term:
    if not built:
        source = "left out: text only (language_model_only, before it a limit of no images)"
        return Term("vision tower", 0, source, "exact")
    values = sum(
        tensor.each * math.prod(tensor.shape)
        for tensor in model.tensors
        if _part(tensor.name) is None
    )
    source = "tensor table, whole on every rank (bound)"
    return Term("vision tower", values * WIDTH[dtype], source, "rule of thumb")
