"""What a worker answers when it is asked for its memory. It is sent by name: no patch itself."""

from __future__ import annotations

import os
from typing import Any

from harness.patches._modules import live


def free_memory(worker: Any) -> tuple[int, int]:
    """Return free and total bytes of the worker's device; on CPU, of its KV cache's setting."""
    # The CPU worker of 0.16.0 has None there.
    if getattr(worker.device, "type", None) == "cuda":
        free, total = live("torch").cuda.mem_get_info(worker.device)
        return int(free), int(total)
    cache = worker.vllm_config.cache_config
    # 0.16.0 has the first, 0.32.0 only the second; VLLM_CPU_KVCACHE_SPACE sets either.
    for name in ("cpu_kvcache_space_bytes", "kv_cache_memory_bytes"):
        size = getattr(cache, name, None)
        if size:
            return int(size), int(size)
    page = os.sysconf("SC_PAGE_SIZE")
    return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
