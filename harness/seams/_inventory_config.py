"""Seams of configuration: constructors and fields."""

from __future__ import annotations

from harness.seams._uses import CONNECTORS, NATIVE, PATCHED, PATCHES, TESTS, V03, V04, call, names
from harness.seams.seam import Kind, Seam, Use

_CONFIG = "vllm.config"
_GENERATOR = "vllm_hidden_states_generator.py, _create_vllm_config"

_SCHEDULER_KEYS = ("max_num_seqs", "max_model_len", "max_num_batched_tokens")
_CACHE_KEYS = ("block_size", "gpu_memory_utilization")

CONSTRUCTORS = (
    Seam(
        "config.vllm",
        Kind.CLASS,
        (f"{_CONFIG}:VllmConfig",),
        tuple(
            Use(
                by,
                (
                    call(
                        "model_config",
                        "cache_config",
                        "parallel_config",
                        "scheduler_config",
                        "device_config",
                        "load_config",
                    ),
                ),
                note=_GENERATOR,
            )
            for by in (V03, V04)
        ),
        note="re-exported; defined in vllm.config.vllm from 0.11.1",
    ),
    Seam(
        "config.model",
        Kind.CLASS,
        (f"{_CONFIG}:ModelConfig",),
        tuple(
            Use(
                by,
                (
                    call(
                        "model",
                        "tokenizer",
                        "trust_remote_code",
                        "dtype",
                        "max_model_len",
                        "enforce_eager",
                    ),
                ),
                note=_GENERATOR,
            )
            for by in (V03, V04)
        ),
    ),
    Seam(
        "config.cache",
        Kind.CLASS,
        (f"{_CONFIG}:CacheConfig",),
        (
            Use(V03, (call(*_CACHE_KEYS),), note=_GENERATOR),
            Use(V04, (call(*_CACHE_KEYS, "enable_prefix_caching"),), note=_GENERATOR),
            Use(PATCHES, (call(*_CACHE_KEYS, "enable_prefix_caching"),)),
        ),
        note="prefix reuse is on by default from 0.12.0",
    ),
    Seam(
        "config.parallel",
        Kind.CLASS,
        (f"{_CONFIG}:ParallelConfig",),
        tuple(
            Use(by, (call("tensor_parallel_size", "worker_extension_cls"),), note=_GENERATOR)
            for by in (V03, V04)
        ),
    ),
    Seam(
        "config.scheduler",
        Kind.CLASS,
        (f"{_CONFIG}:SchedulerConfig",),
        (
            Use(V03, (call(*_SCHEDULER_KEYS),), note=_GENERATOR),
            Use(V04, (call(*_SCHEDULER_KEYS, "is_encoder_decoder"),), note=_GENERATOR),
            Use(PATCHES, note="the patch passes is_encoder_decoder where the release asks for it"),
        ),
        note="is_encoder_decoder came in 0.11.1 and lost its default in 0.12.0",
    ),
    *(
        Seam(
            f"config.{id}",
            Kind.CLASS,
            (f"{_CONFIG}:{name}",),
            tuple(Use(by, (call(),), note=_GENERATOR) for by in (V03, V04)),
        )
        for id, name in (("device", "DeviceConfig"), ("load", "LoadConfig"))
    ),
    Seam(
        "config.current",
        Kind.FUNCTION,
        (f"{_CONFIG}:get_current_vllm_config",),
        (Use(TESTS, (call(),)),),
        note="outside a context it warned until 0.13.0 and raises from 0.14.0",
    ),
    Seam(
        "config.set-current",
        Kind.FUNCTION,
        (f"{_CONFIG}:set_current_vllm_config",),
        (Use(TESTS, (call(positional=1),)),),
    ),
)

FIELDS = (
    *names(
        "config.cache",
        f"{_CONFIG}:CacheConfig",
        Kind.FIELD,
        "num_gpu_blocks",
        Use(V03),
        Use(V04),
    ),
    *names(
        "config.cache",
        f"{_CONFIG}:CacheConfig",
        Kind.FIELD,
        "kv_cache_layout",
        Use(PATCHES, optional=True, note="must be resolved before workers start, where it is"),
    ),
    *names(
        "config.scheduler",
        f"{_CONFIG}:SchedulerConfig",
        Kind.FIELD,
        "is_encoder_decoder",
        Use(PATCHES, optional=True, note="passed where it is required"),
    ),
    *names(
        "config.scheduler",
        f"{_CONFIG}:SchedulerConfig",
        Kind.FIELD,
        "scheduler_cls",
        Use(PATCHED, note="asserted after the load"),
    ),
    *names(
        "config.cache",
        f"{_CONFIG}:CacheConfig",
        Kind.FIELD,
        "block_size",
        Use(V04),
        Use(NATIVE, note="inside/worker.py"),
        Use(PATCHED),
        Use(PATCHES),
        Use(CONNECTORS),
    ),
    *names(
        "config.cache",
        f"{_CONFIG}:CacheConfig",
        Kind.FIELD,
        "prefix_caching_hash_algo",
        Use(V04),
        Use(TESTS),
    ),
    *names(
        "config.cache",
        f"{_CONFIG}:CacheConfig",
        Kind.FIELD,
        "enable_prefix_caching",
        Use(NATIVE, note="asserted after the load"),
        Use(PATCHED),
        Use(PATCHES),
    ),
    *names(
        "config.cache",
        f"{_CONFIG}:CacheConfig",
        Kind.FIELD,
        "cache_dtype",
        Use(NATIVE, note="asserted after the load"),
        Use(PATCHED),
    ),
    *names(
        "config.cache",
        f"{_CONFIG}:CacheConfig",
        Kind.FIELD,
        "kv_cache_memory_bytes",
        Use(NATIVE, note="asserted after the load"),
        Use(PATCHED),
    ),
    *names(
        "config.model",
        f"{_CONFIG}:ModelConfig",
        Kind.FIELD,
        "max_model_len",
        Use(V03),
        Use(V04),
        Use(NATIVE),
        Use(PATCHED),
    ),
    *names(
        "config.model",
        f"{_CONFIG}:ModelConfig",
        Kind.FIELD,
        "skip_tokenizer_init generation_config enforce_eager multimodal_config use_mla",
        Use(NATIVE, note="asserted after the load"),
        Use(PATCHED),
    ),
    *names(
        "config.model",
        f"{_CONFIG}:ModelConfig",
        Kind.FIELD,
        "dtype",
        Use(NATIVE, note="asserted after the load"),
        Use(PATCHED),
        Use(PATCHES, note="the patch half-precision reads it"),
        Use(CONNECTORS),
    ),
    *names(
        "config.model",
        f"{_CONFIG}:ModelConfig",
        Kind.FIELD,
        "hf_config",
        Use(NATIVE, note="holds the draft's layer ids"),
        Use(PATCHES, note="the patch half-precision reads its architectures"),
        Use(CONNECTORS),
    ),
    *names(
        "config.model",
        f"{_CONFIG}:ModelConfig",
        Kind.FIELD,
        "quantization",
        Use(NATIVE, note="inside/seeded.py"),
        Use(PATCHED),
    ),
    Seam(
        "config.model.get_hidden_size",
        Kind.METHOD,
        (f"{_CONFIG}:ModelConfig.get_hidden_size",),
        (Use(CONNECTORS, (call(),)),),
    ),
    *names(
        "config.parallel",
        f"{_CONFIG}:ParallelConfig",
        Kind.FIELD,
        "decode_context_parallel_size prefill_context_parallel_size",
        Use(PATCHES, optional=True, note="the block size is theirs too, where they are"),
    ),
    *names(
        "config.parallel",
        f"{_CONFIG}:ParallelConfig",
        Kind.FIELD,
        "cp_kv_cache_interleave_size",
        Use(PATCHES, optional=True, note="workers are told it with the layout from 0.33.0"),
    ),
    *names(
        "config.parallel",
        f"{_CONFIG}:ParallelConfig",
        Kind.FIELD,
        "worker_extension_cls distributed_executor_backend tensor_parallel_size"
        " pipeline_parallel_size data_parallel_size enable_expert_parallel",
        Use(NATIVE, note="asserted after the load"),
        Use(PATCHED),
    ),
    *names(
        "config.scheduler",
        f"{_CONFIG}:SchedulerConfig",
        Kind.FIELD,
        "max_num_seqs max_num_batched_tokens async_scheduling enable_chunked_prefill",
        Use(NATIVE, note="asserted after the load"),
        Use(PATCHED),
        Use(PATCHES),
    ),
    *names(
        "config.vllm",
        f"{_CONFIG}:VllmConfig",
        Kind.FIELD,
        "model_config cache_config parallel_config scheduler_config",
        Use(NATIVE, note="the settings asserted after the load are read through these"),
        Use(PATCHED),
        Use(PATCHES),
        Use(CONNECTORS),
        Use(V03),
        Use(V04),
    ),
    *names(
        "config.vllm",
        f"{_CONFIG}:VllmConfig",
        Kind.FIELD,
        "compilation_config",
        Use(NATIVE, note="asserted after the load"),
        Use(PATCHED),
    ),
    *names(
        "config.vllm",
        f"{_CONFIG}:VllmConfig",
        Kind.FIELD,
        "speculative_config kv_transfer_config",
        Use(NATIVE, note="the settings asserted after the load are read through these"),
        Use(CONNECTORS),
    ),
    *names(
        "config.vllm",
        f"{_CONFIG}:VllmConfig",
        Kind.FIELD,
        "attention_config use_v2_model_runner",
        Use(NATIVE, optional=True),
        Use(PATCHED, optional=True),
    ),
    *names(
        "config.compilation", f"{_CONFIG}:CompilationConfig", Kind.FIELD, "custom_ops", Use(NATIVE)
    ),
    *names(
        "config.speculative",
        f"{_CONFIG}:SpeculativeConfig",
        Kind.FIELD,
        "num_speculative_tokens",
        Use(NATIVE),
    ),
    *names(
        "config.speculative",
        f"{_CONFIG}:SpeculativeConfig",
        Kind.FIELD,
        "method draft_model_config",
        Use(NATIVE),
        Use(CONNECTORS),
    ),
    *names(
        "config.kv-transfer",
        f"{_CONFIG}:KVTransferConfig",
        Kind.FIELD,
        "kv_connector kv_connector_module_path kv_role kv_connector_extra_config",
        Use(NATIVE),
    ),
    Seam(
        "config.kv-transfer.get_from_extra_config",
        Kind.METHOD,
        (f"{_CONFIG}:KVTransferConfig.get_from_extra_config",),
        (
            Use(NATIVE, (call(positional=2),), note="inside/connector.py"),
            Use(CONNECTORS, (call(positional=2),)),
        ),
    ),
    Seam(
        "config.multimodal.language_model_only",
        Kind.FIELD,
        ("vllm.config.multimodal:MultiModalConfig.language_model_only",),
        (Use(NATIVE, optional=True, note="inside/facts.py asks the file"),),
    ),
    Seam(
        "config.attention.backend",
        Kind.FIELD,
        ("vllm.config.attention:AttentionConfig.backend",),
        (Use(NATIVE, optional=True),),
    ),
)

SEAMS = (*CONSTRUCTORS, *FIELDS)
