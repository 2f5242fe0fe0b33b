"""Which share of each tensor one rank holds, and whether a tensor parallel size fits.

Source: vLLM's DeepSeek-V2 decoder, 0.16 and 0.32 alike (read): embedding and head are split by
vocabulary; q_b, kv_b, gate and up by rows; o and down by columns; the latent projections, the
router and the norms are whole on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from harness.errors import Refused
from harness.estimate._model import Model
from harness.models import GROUP_SIZE, StoredTensor

State = Literal["ok", "note", "fail"]

VOCABULARY_PADDING = 64
"""vLLM's ``DEFAULT_VOCAB_PADDING_SIZE``: rows of embedding and head are padded to a multiple."""

# vLLM's marlin_utils: a tile of the MoE kernel along an expert's inner width, and along hidden.
_MARLIN_INNER = 64
_MARLIN_HIDDEN = 128

_BY_ROW = ("q_b_proj", "kv_b_proj", "gate_proj", "up_proj")
_BY_COLUMN = ("o_proj", "down_proj")
_BY_VOCABULARY = ("embed_tokens", "lm_head")


@dataclass(frozen=True)
class ShardCheck:
    """One condition on a tensor parallel size.

    Attributes:
        id: Stable id.
        state: ``ok``, ``note`` (it starts, but read this) or ``fail`` (it cannot start).
        found: The arithmetic, in one line.
    """

    id: str
    state: State
    found: str

    def to_json(self) -> dict[str, Any]:
        """Return the check as a flat JSON object."""
        return asdict(self)


def rank_values(tensor: StoredTensor, tensor_parallel_size: int) -> int:
    """Return how many values of a tensor (of all its experts) one rank holds.

    Args:
        tensor: A tensor of the text model.
        tensor_parallel_size: Ranks; a size that :func:`shard_checks` lets pass.
    """
    extents = list(tensor.shape)
    owner = tensor.name.split(".")[-2]
    if not tensor.name.endswith("_shape"):
        if owner in _BY_VOCABULARY:
            extents[0] = _padded(extents[0]) // tensor_parallel_size
        elif owner in _BY_ROW:
            extents[0] //= tensor_parallel_size
        elif owner in _BY_COLUMN:
            extents[1] //= tensor_parallel_size
    return tensor.each * math.prod(extents)


def shard_checks(model: Model, tensor_parallel_size: int) -> tuple[ShardCheck, ...]:
    """Hold a tensor parallel size to all that the model's sizes ask of it.

    Args:
        model: The model.
        tensor_parallel_size: Ranks.

    Returns:
        Every check, passed or not, in a fixed order.
    """
    return tuple(_checks(model, tensor_parallel_size))


def tensor_parallel_sizes(model: Model, most: int = 64) -> tuple[int, ...]:
    """Return the tensor parallel sizes up to ``most`` that no check fails."""
    return tuple(size for size in range(1, most + 1) if not _failed(model, size))


def require_shards(model: Model, tensor_parallel_size: int) -> tuple[ShardCheck, ...]:
    """Return the checks of a size that fits.

    Raises:
        Refused: ``estimate.tensor-parallel``; it lists the sizes that do fit.
    """
    failed = _failed(model, tensor_parallel_size)
    if failed:
        sizes = ", ".join(map(str, tensor_parallel_sizes(model)))
        raise Refused(
            "estimate.tensor-parallel",
            expected=f"a tensor parallel size that divides {model.name}: {sizes}",
            found=f"{tensor_parallel_size}: "
            + "; ".join(f"{check.id}: {check.found}" for check in failed),
            where="--tensor-parallel-size",
            next="choose one of these",
        )
    return shard_checks(model, tensor_parallel_size)


def _failed(model: Model, size: int) -> list[ShardCheck]:
    return [check for check in shard_checks(model, size) if check.state == "fail"]


def _padded(rows: int) -> int:
    return -(-rows // VOCABULARY_PADDING) * VOCABULARY_PADDING


def _checks(model: Model, size: int) -> Iterator[ShardCheck]:
    shape = model.shape
    yield _divides("shard.heads", "attention heads", shape.num_attention_heads, size)
    yield ShardCheck(
        "shard.kv-heads", "ok", "one latent head, whole on every rank: its cache is not split"
    )
    yield _divides("shard.vocabulary", "rows, padded", _padded(shape.vocab_size), size)
    yield _divides("shard.dense", "inner width of a dense layer", shape.intermediate_size, size)
    shared = shape.moe_intermediate_size * shape.n_shared_experts
    yield _divides("shard.shared-experts", "inner width of the shared experts", shared, size)
    inner = shape.moe_intermediate_size
    experts = _divides("shard.experts", "inner width of an expert", inner, size)
    yield experts
    if not model.int4 or experts.state == "fail":
        return
    yield _multiple("shard.expert-group", inner // size, GROUP_SIZE, "fail", "the INT4 group")
    # Releases before padding take a slower kernel, or stop as in llm-compressor#57.
    tile = "Marlin's tile, so a release pads or takes another kernel"
    yield _multiple("shard.marlin-inner", inner // size, _MARLIN_INNER, "note", tile)
    yield _multiple("shard.marlin-hidden", shape.hidden_size, _MARLIN_HIDDEN, "note", tile)


def _divides(id: str, what: str, count: int, size: int) -> ShardCheck:
    if count % size:
        return ShardCheck(id, "fail", f"{count} {what} cannot be dealt to {size} ranks")
    return ShardCheck(id, "ok", f"{count} {what} / {size} = {count // size} a rank")


def _multiple(id: str, width: int, unit: int, state: State, what: str) -> ShardCheck:
    if width % unit or width == 0:
        return ShardCheck(id, state, f"{width} a rank is no multiple of {unit}, {what}")
    return ShardCheck(id, "ok", f"{width} a rank = {width // unit} x {unit}")
