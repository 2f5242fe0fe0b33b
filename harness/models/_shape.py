"""The sizes of a Kimi-shaped checkpoint, read from its ``config.json``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from harness.errors import NotComparable
from harness.models._facts import read_config
from harness.models._int4 import GROUP_SIZE
from harness.models._kimi import KIMI_K25, KimiShape, VisionShape, Yarn

_FRACTIONS = ("routed_scaling_factor", "rms_norm_eps", "rope_theta")
_OTHERS = ("yarn", "vision", *_FRACTIONS)


def shape_of(path: str | os.PathLike[str]) -> KimiShape:
    """Return every size that decides a tensor's shape in a checkpoint of Kimi's family.

    Args:
        path: Folder that holds ``config.json``.

    Returns:
        The shape; a text model without a vision tower gets Kimi's, which nothing then reads.

    Raises:
        UsageError: As :func:`harness.models.read`.
        NotComparable: ``models.unknown-family``: a size is missing, or the experts are packed
            in another way than Kimi's.
    """
    folder = Path(path)
    config = read_config(folder)
    nested = config.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, dict) else config
    where = folder / "config.json"
    sizes = {
        field.name: _size(text, field.name, where)
        for field in fields(KimiShape)
        if field.name not in _OTHERS
    }
    _check_group(text.get("quantization_config") or config.get("quantization_config"), where)
    shape = KimiShape(
        **sizes,
        yarn=_yarn(text, sizes["max_position_embeddings"]),
        vision=_vision(config.get("vision_config"), where),
    )
    fractions: dict[str, Any] = {name: text[name] for name in _FRACTIONS if name in text}
    return replace(shape, **fractions)


def _size(source: Mapping[str, Any], key: str, where: Path) -> int:
    value = source.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise _unknown(f"{key}, a whole number", "no such key" if value is None else repr(value), where)


def _unknown(expected: str, found: str, where: Path) -> NotComparable:
    return NotComparable(
        "models.unknown-family",
        expected=f"a decoder of DeepSeek-V3's form, with {expected}",
        found=found,
        where=str(where),
        next="give a checkpoint of Kimi-K2.5's family, or a profile",
    )


def _yarn(text: Mapping[str, Any], positions: int) -> Yarn:
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(scaling, dict) or "factor" not in scaling:
        return Yarn(factor=1.0, original_max_position_embeddings=positions)
    original = int(scaling.get("original_max_position_embeddings", positions))
    return Yarn(factor=float(scaling["factor"]), original_max_position_embeddings=original)


def _vision(vision: object, where: Path) -> VisionShape:
    if not isinstance(vision, dict):
        return KIMI_K25.vision
    kernel = vision.get("merge_kernel_size", [2, 2])
    return VisionShape(
        hidden_size=_either(vision, "vt_hidden_size", "hidden_size", where),
        intermediate_size=_either(vision, "vt_intermediate_size", "intermediate_size", where),
        num_heads=_either(vision, "vt_num_attention_heads", "num_attention_heads", where),
        num_layers=_either(vision, "vt_num_hidden_layers", "num_hidden_layers", where),
        position_grid=_either(vision, "init_pos_emb_height", "pos_emb_height", where),
        patch_size=int(vision.get("patch_size", 14)),
        merge_kernel=int(kernel[0] if isinstance(kernel, list) else kernel),
    )


def _either(vision: Mapping[str, Any], own: str, other: str, where: Path) -> int:
    """Read a size in the released checkpoint's schema, else in transformers' own."""
    return _size(vision, own if own in vision else other, where)


def _check_group(block: object, where: Path) -> None:
    groups = block.get("config_groups") if isinstance(block, dict) else None
    for group in groups.values() if isinstance(groups, dict) else ():
        size = (group.get("weights") or {}).get("group_size") if isinstance(group, dict) else None
        if size != GROUP_SIZE:
            raise _unknown(f"experts in groups of {GROUP_SIZE}", f"group_size {size}", where)
