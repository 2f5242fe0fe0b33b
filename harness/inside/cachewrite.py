"""vLLM's own write of a step's rows into its cache, handed the same bits as fewer elements.

Its cost is one of elements, like a gather's (:mod:`harness.inside.words`): 1.27 ms a step of 8,192
tokens and four depths of 7,168 bfloat16 values on an H200, 0.28 ms as words of 16 bytes, with
vLLM 0.26.0's own function.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from harness.inside.words import WORD, in_words


def write_in_words(layer: Any, cache: torch.Tensor, block_size: int) -> bool:
    """Let a cache-only layer write whole words, if that changes nothing but the time.

    One block is written both ways first. A release whose write does more than move bits, or takes
    no such words, keeps its own.

    Args:
        layer: vLLM's ``CacheOnlyAttentionLayer``; this one instance is changed, no class.
        cache: Its hidden-state cache: [blocks, ...], the release's own layout, rows last.
        block_size: Rows of a block.

    Returns:
        Whether it does now.
    """
    own: Any = getattr(layer, "impl", None)
    if not hasattr(own, "do_kv_cache_update") or not hasattr(own, "kv_cache_torch_dtype"):
        return False
    if in_words(cache, WORD).dtype != WORD:
        return False
    narrow = own.do_kv_cache_update

    def write(
        layer: Any, to_cache: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        rows, target = in_words(to_cache, WORD), in_words(kv_cache, WORD)
        fits = to_cache.dtype == kv_cache.dtype == own.kv_cache_torch_dtype
        if fits and rows.dtype == target.dtype == WORD:
            wide(layer, rows, target, slot_mapping)
        else:
            narrow(layer, to_cache, kv_cache, slot_mapping)

    try:
        other = copy.copy(own)
        other.kv_cache_torch_dtype = WORD  # it refuses rows and caches of another type
        wide = other.do_kv_cache_update
        alike = _alike(layer, narrow, write, cache, block_size)
        if alike:
            own.do_kv_cache_update = write
    except Exception:
        # An unknown release's own words for "not so"; what it does by itself still works.
        return False
    return alike


def _alike(layer: Any, narrow: Any, write: Any, cache: torch.Tensor, block_size: int) -> bool:
    """Write a block both ways, backwards and with one row of padding; compare bit for bit."""
    if len(cache) < 2:
        return False
    by_own, by_words = torch.zeros_like(cache[:2]), torch.zeros_like(cache[:2])
    size = by_own[1].numel() * cache.element_size() // 2
    bits = torch.arange(size, device=cache.device).to(torch.int16)
    rows = bits.view(cache.dtype).view(block_size, -1, cache.shape[-1])
    slots = torch.arange(block_size, 2 * block_size, device=cache.device).flip(0)
    slots[0] = -1
    narrow(layer, rows, by_own, slots)
    write(layer, rows, by_words, slots)
    return bool(torch.equal(by_own.view(torch.int16), by_words.view(torch.int16)))
