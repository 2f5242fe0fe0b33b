"""Ask the installed vLLM how it groups Kimi-K2.5's latents with hidden states; print as JSON.

No engine: the specs that the layers would give, through vLLM's own grouping.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import HiddenStateCacheSpec, MLAAttentionSpec

BLOCK, LAYERS, COLUMNS, HIDDEN, LATENT = 16, 61, 4, 7168, 576


def latent() -> Any:
    return MLAAttentionSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=LATENT, dtype=torch.bfloat16
    )


def main() -> None:
    hidden = HiddenStateCacheSpec(
        block_size=BLOCK, num_kv_heads=COLUMNS, head_size=HIDDEN, dtype=torch.bfloat16
    )
    specs = {f"layer.{number}": latent() for number in range(LAYERS)} | {"hidden": hidden}
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
    )
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    alone = [kv_cache_utils.KVCacheGroupSpec([f"layer.{n}" for n in range(LAYERS)], latent())]
    scaled, page = kv_cache_utils._ensure_min_page_size(
        alone, latent().page_size_bytes, {"hidden": hidden}
    )
    block = scaled[0].kv_cache_spec.block_size
    tokens = kv_cache_utils._largest_divisor_at_most(block, page // (COLUMNS * HIDDEN * 2))
    print(
        json.dumps(
            {
                "groups": len(groups),
                "block": groups[0].kv_cache_spec.block_size,
                "page": groups[0].kv_cache_spec.page_size_bytes,
                "latent_page": latent().page_size_bytes,
                "hidden_page": hidden.page_size_bytes,
                "parted_page": page,
                "parted_tokens": tokens,
            }
        )
    )


if __name__ == "__main__":
    main()
