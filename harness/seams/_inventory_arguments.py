"""Seams of what the harness sets: engine arguments and environment variables."""

from __future__ import annotations

from harness.seams._uses import NATIVE, PATCHED, call, names
from harness.seams.seam import Kind, Seam, Use

_ALWAYS = (
    "model dtype kv_cache_dtype load_format seed skip_tokenizer_init generation_config"
    " enforce_eager worker_extension_cls distributed_executor_backend tensor_parallel_size"
    " pipeline_parallel_size data_parallel_size enable_expert_parallel max_model_len"
    " max_num_seqs max_num_batched_tokens enable_prefix_caching async_scheduling"
    " enable_chunked_prefill block_size kv_cache_memory_bytes gpu_memory_utilization"
    " compilation_config limit_mm_per_prompt trust_remote_code"
)

ARGUMENTS = (
    Seam(
        "engine-args",
        Kind.CLASS,
        ("vllm.engine.arg_utils:EngineArgs",),
        (
            Use(
                NATIVE,
                (call(*_ALWAYS.split(), "speculative_config", "kv_transfer_config"),),
                note="harness/recipe; LLM(**kwargs) hands its keywords to it",
            ),
            Use(PATCHED, (call(*_ALWAYS.split(), "scheduler_cls"),)),
        ),
    ),
    *names(
        "engine-args",
        "vllm.engine.arg_utils:EngineArgs",
        Kind.FIELD,
        "language_model_only attention_backend",
        Use(NATIVE, optional=True, note="given where the release takes it"),
    ),
    Seam(
        "engine-args.create_engine_config",
        Kind.METHOD,
        ("vllm.engine.arg_utils:EngineArgs.create_engine_config",),
        (Use(NATIVE, (call(),), note="inside/engine.py, op configure"),),
    ),
)

_VARIABLES = (
    "VLLM_ENABLE_V1_MULTIPROCESSING VLLM_WORKER_MULTIPROC_METHOD VLLM_NO_USAGE_STATS"
    " VLLM_USE_FLASHINFER_SAMPLER VLLM_USE_DEEP_GEMM VLLM_CPU_OMP_THREADS_BIND VLLM_MLA_DISABLE"
)

VARIABLES = (
    *names(
        "env",
        "vllm.envs",
        Kind.ENV,
        _VARIABLES,
        Use(NATIVE, note="harness/recipe"),
        Use(PATCHED),
    ),
    *names(
        "env",
        "vllm.envs",
        Kind.ENV,
        "VLLM_USE_V2_MODEL_RUNNER VLLM_ENGINE_READY_TIMEOUT_S VLLM_PLUGINS VLLM_CPU_KVCACHE_SPACE",
        Use(NATIVE, optional=True, note="set, and of no effect where it does not exist"),
        Use(PATCHED, optional=True),
    ),
)

SEAMS = (*ARGUMENTS, *VARIABLES)
