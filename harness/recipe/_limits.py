"""Lines about lengths, batches and memory."""

from __future__ import annotations

from collections.abc import Iterator

from harness.errors import Refused
from harness.recipe._context import Context
from harness.recipe._types import Setting

# vLLM's SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS, which its CPU platform falls back on.
_CPU_MLA_TOKENS = 2048
_CPU_TOKENS = 2048
_CUDA_TOKENS = 8192
_CPU_SEQS = 64
_CUDA_SEQS = 256
_MIB = 1 << 20
_GIB = 1 << 30
_CPU_CACHE_LEAST = 256 * _MIB
_CPU_CACHE_MOST = 1024 * _MIB
# Bytes of a value: float32 4, bfloat16 2.
_WIDTH = {"float32": 4, "bfloat16": 2}


def rules(context: Context) -> Iterator[Setting]:
    """Yield the lines that bound a request, a step and the cache."""
    length = context.max_model_len
    yield Setting(
        "max_model_len",
        length,
        "the longest prompt and the one output token that vLLM insists on",
        expect={"model_config.max_model_len": length},
    )
    yield from _budget(context)
    sequences = context.request.max_num_seqs or (_CPU_SEQS if context.on_cpu else _CUDA_SEQS)
    yield Setting(
        "max_num_seqs",
        sequences,
        "requests in flight",
        expect={"scheduler_config.max_num_seqs": sequences},
    )
    yield Setting(
        "enable_prefix_caching",
        False,
        "a reused prefix is not computed again, so its rows would be missing",
        expect={"cache_config.enable_prefix_caching": False},
    )
    yield Setting(
        "async_scheduling",
        False,
        "explicit: with it a step's rows are copied while the next step overwrites them",
        expect={"scheduler_config.async_scheduling": False},
    )
    if context.on_cpu:
        yield from _cpu_cache(context, sequences)
    elif context.request.kv_cache_memory_bytes is not None:
        yield _cache(context.request.kv_cache_memory_bytes, "as asked")


def _budget(context: Context) -> Iterator[Setting]:
    asked = context.request.max_num_batched_tokens
    if context.on_cpu and context.mla:
        tokens = max(context.max_model_len, _CPU_MLA_TOKENS)
        if asked not in (None, tokens):
            raise Refused(
                "recipe.mla-budget",
                expected=f"max_num_batched_tokens of {tokens}: with latent attention on CPU vLLM "
                "never splits a prompt, and resets the budget to this after the scheduler took "
                "the one it was given; a longer prompt then waits for ever",
                found=str(asked),
                where="recipe",
                next="leave the budget to the recipe",
            )
        why = "at least the longest prompt: latent attention on CPU never splits one"
    else:
        tokens = asked or (_CPU_TOKENS if context.on_cpu else _CUDA_TOKENS)
        why = "as asked" if asked else "tokens of one forward pass"
    expect = {"scheduler_config.max_num_batched_tokens": tokens}
    if context.request.capture == "native":
        expect["scheduler_config.max_num_scheduled_tokens"] = tokens
    yield Setting("max_num_batched_tokens", tokens, why, expect=expect)
    chunked = not (context.on_cpu and context.mla)
    yield Setting(
        "enable_chunked_prefill",
        chunked,
        "chunks of a prompt are joined by position" if chunked else "not offered by this backend",
        expect={"scheduler_config.enable_chunked_prefill": chunked},
    )


def _cpu_cache(context: Context, sequences: int) -> Iterator[Setting]:
    block = 16 if context.mla else 32
    yield Setting(
        "block_size",
        block,
        "the only size of latent attention on CPU"
        if context.mla
        else "CPU attention takes multiples of 32",
        expect={"cache_config.block_size": block},
    )
    asked = context.request.kv_cache_memory_bytes
    if asked is not None:
        yield from _cpu_cache_size(context, asked, "as asked")
        return
    one = _bytes_per_token(context) * (context.max_model_len + block)
    # Never below two of the longest requests, however long they are.
    size = max(_CPU_CACHE_LEAST, min(one * sequences, _CPU_CACHE_MOST), 2 * one)
    size = -(-size // _MIB) * _MIB
    why = "bounded: by default a CPU engine takes half the memory"
    yield from _cpu_cache_size(context, size, why)


def _cpu_cache_size(context: Context, size: int, why: str) -> Iterator[Setting]:
    yield _cache(size, why)
    if not context.request.engine.has("cpu_cache_bytes"):
        yield Setting(
            "VLLM_CPU_KVCACHE_SPACE",
            str(-(-size // _GIB)),
            "these releases read the size of a CPU's cache from here only, in whole GiB",
            "environment",
        )


def _cache(size: int, why: str) -> Setting:
    return Setting(
        "kv_cache_memory_bytes", size, why, expect={"cache_config.kv_cache_memory_bytes": size}
    )


def _bytes_per_token(context: Context) -> int:
    """Bound the cache's bytes for one token: attention of every layer and captured rows."""
    request = context.request
    # Latent 512 + rope 64; plain DeepSeek attention pads values to 192 a head.
    layer = (
        576 if context.mla else 2 * max(request.model.hidden_size, 192 * request.model.num_heads)
    )
    native = request.layers if request.capture == "native" else None
    columns = len(native.engine_depths) if native is not None else 0
    values = request.model.num_layers * layer + columns * request.model.hidden_size
    return values * _WIDTH[context.dtype]
