"""Writes rows to vLLM's hidden-state cache, by its own way and as words.

Prints, by case: whether words are taken, whether both caches have the same bits in every block but
the padding's, whether any row is there at all, and whether the wide write was really called.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from vllm.model_executor.models import extract_hidden_states as stock

from harness.inside.cachewrite import write_in_words

BLOCK, BLOCKS, COLUMNS = 4, 6, 3


def impl(hidden: int, dtype: torch.dtype) -> Any:
    return stock.CacheOnlyAttentionImpl(COLUMNS, hidden, "auto", dtype)


def cache(hidden: int, dtype: torch.dtype) -> torch.Tensor:
    """The layout of the newest releases; any other would fail beside their own write."""
    return torch.zeros(BLOCKS, COLUMNS, BLOCK, hidden, dtype=dtype)


def case(
    hidden: int, dtype: torch.dtype, made: Any = None, blocks: int = BLOCKS, offset: int = 0
) -> list[bool]:
    own, changed = impl(hidden, dtype), made or impl(hidden, dtype)
    layer = SimpleNamespace(impl=changed)
    probed = cache(hidden, dtype)[:blocks]
    taken = write_in_words(layer, probed, BLOCK)
    assert not probed.any()
    values = torch.randn(9 * COLUMNS * hidden + offset).to(dtype)
    rows = values[offset:].view(9, COLUMNS, hidden)
    rows[3, 1] = float("nan")
    slots = torch.tensor([23, 4, 5, -1, 6, 7, 12, 9, -1])
    first, second = cache(hidden, dtype), cache(hidden, dtype)
    kinds: list[torch.dtype] = []
    basic = stock.basic_cache

    def seen(to_cache: Any, kv_cache: Any, slot_mapping: Any) -> None:
        kinds.append(to_cache.dtype)
        basic(to_cache, kv_cache, slot_mapping)

    stock.basic_cache = seen
    try:
        layer.impl.do_kv_cache_update(layer, rows, first, slots)
    finally:
        stock.basic_cache = basic
    own.do_kv_cache_update(layer, rows, second, slots)
    same = torch.equal(first[1:].view(torch.int16), second[1:].view(torch.int16))
    return [taken, same, bool(first[1:].any()), kinds == [torch.complex128]]


class Scaled(stock.CacheOnlyAttentionImpl):  # type: ignore[misc]
    """A release that does more than move bits."""

    def do_kv_cache_update(self, layer: Any, to_cache: Any, kv_cache: Any, slots: Any) -> None:
        super().do_kv_cache_update(layer, to_cache * 2, kv_cache, slots)


class Strict(stock.CacheOnlyAttentionImpl):  # type: ignore[misc]
    """A release that refuses what is no float."""

    def do_kv_cache_update(self, layer: Any, to_cache: Any, kv_cache: Any, slots: Any) -> None:
        if to_cache.dtype == torch.complex128:
            raise NotImplementedError("complex")
        super().do_kv_cache_update(layer, to_cache, kv_cache, slots)


class Fixed:
    """A release whose write cannot be replaced on an instance."""

    __slots__ = ("kv_cache_torch_dtype",)

    def __init__(self, dtype: torch.dtype) -> None:
        self.kv_cache_torch_dtype = dtype

    do_kv_cache_update = stock.CacheOnlyAttentionImpl.do_kv_cache_update


class Sealed(stock.CacheOnlyAttentionImpl):  # type: ignore[misc]
    """A release that allows no copy."""

    def __copy__(self) -> Any:
        raise TypeError("no copy")


def refused(own: torch.dtype, given: torch.dtype) -> bool:
    """Whether rows and a cache of one wrong type are refused, as vLLM itself does."""
    layer = SimpleNamespace(impl=impl(64, own))
    write_in_words(layer, cache(64, own), BLOCK)
    rows = torch.zeros(1, COLUMNS, 64, dtype=given)
    try:
        layer.impl.do_kv_cache_update(layer, rows, cache(64, given), torch.tensor([5]))
    except AssertionError:
        return True
    return False


def main() -> None:
    half = torch.bfloat16
    print(
        json.dumps(
            {
                "bfloat16": case(64, half),
                "float32": case(64, torch.float32),
                "odd width": case(12, half),
                "odd rows": case(64, half, offset=3),
                "one block": case(64, half, blocks=1),
                "strict": case(64, half, Strict(COLUMNS, 64, "auto", half)),
                "fixed": case(64, half, Fixed(half)),
                "sealed": case(64, half, Sealed(COLUMNS, 64, "auto", half)),
                "scaled": case(64, half, Scaled(COLUMNS, 64, "auto", half))[0],
                "another type": refused(half, torch.float16),
                "another layer": write_in_words(SimpleNamespace(impl=None), cache(64, half), BLOCK),
                "no layer": write_in_words(None, cache(64, half), BLOCK),
            }
        )
    )


main()
