"""Lines about processes, devices and numerics."""

from __future__ import annotations

from collections.abc import Iterator

from harness.recipe._context import Context
from harness.recipe._types import Setting

# A load of 540 GB takes over 20 minutes; the host has the deadline that counts.
_ENGINE_READY_S = 7200


def rules(context: Context) -> Iterator[Setting]:
    """Yield the lines that every engine gets, then those of its device."""
    yield from _model(context)
    yield from _processes(context)
    yield from _offline()
    if context.on_cpu:
        yield from _cpu(context)
    else:
        yield from _cuda(context)
    yield from _preloads(context)


def _model(context: Context) -> Iterator[Setting]:
    request = context.request
    yield Setting("model", str(request.model.path), "the checkpoint's folder")
    yield Setting(
        "dtype",
        context.dtype,
        "explicit: 'auto' turns a float32 checkpoint into bfloat16 without a word",
        expect={"model_config.dtype": f"torch.{context.dtype}"},
    )
    yield Setting(
        "kv_cache_dtype",
        "auto",
        "rows travel through the cache, which a narrower dtype would round",
        expect={"cache_config.cache_dtype": "auto"},
    )
    seeded = request.model.weights_at_load
    yield Setting(
        "load_format",
        "harness_seeded" if seeded else "auto",
        "the folder holds a plan: each worker makes its weights" if seeded else "as on disk",
    )
    yield Setting("seed", 0, "the same weights and samples in every run")
    yield from _tokenizer(context)
    yield Setting(
        "generation_config",
        "vllm",
        "the checkpoint's own sampling defaults stay out",
        expect={"model_config.generation_config": "vllm"},
    )
    yield Setting(
        "enforce_eager",
        True,
        "no graph pads the rows and every forward pre-hook of the canary runs",
        expect={"model_config.enforce_eager": True},
    )
    if request.model.is_wrapper:
        yield from _wrapper(context)
    yield Setting(
        "worker_extension_cls",
        "harness.inside.worker.WorkerExtension",
        "the canary and the settings' check run inside each worker",
        expect={"parallel_config.worker_extension_cls": "harness.inside.worker.WorkerExtension"},
    )


def _tokenizer(context: Context) -> Iterator[Setting]:
    skip = not (context.request.model.is_wrapper and _builds_processor(context))
    yield Setting(
        "skip_tokenizer_init",
        skip,
        "token ids are sent, never text"
        if skip
        else "this release's wrapper asks for a tokenizer even where only token ids are sent",
        expect={"model_config.skip_tokenizer_init": skip},
    )


def _builds_processor(context: Context) -> bool:
    """Say whether the release builds a wrapper's processor although only text is sent."""
    engine = context.request.engine
    return engine.has("wrapper_needs_processor") or not engine.has("language_model_only")


def _wrapper(context: Context) -> Iterator[Setting]:
    if context.request.engine.has("language_model_only"):
        yield Setting(
            "language_model_only",
            True,
            "text only: no vision weights, no dummy images at start-up",
            expect={"model_config.multimodal_config.language_model_only": True},
        )
    else:
        yield Setting(
            "limit_mm_per_prompt",
            {"image": 0, "video": 0, "vision_chunk": 0},
            "text only, in releases before language_model_only",
        )
    if _builds_processor(context):
        yield Setting(
            "trust_remote_code",
            True,
            "these releases ask for the checkpoint's image processor even for text",
        )


def _processes(context: Context) -> Iterator[Setting]:
    request = context.request
    yield Setting(
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "1",
        "an engine in the caller's process stops stepping before the last sample is saved",
        "environment",
    )
    yield Setting(
        "VLLM_WORKER_MULTIPROC_METHOD",
        "spawn",
        "a forked worker would inherit our threads, sockets and locks",
        "environment",
    )
    yield Setting(
        "VLLM_ENGINE_READY_TIMEOUT_S",
        str(_ENGINE_READY_S),
        "the host's deadline decides; vLLM's own 600 s is less than one full load",
        "environment",
    )
    many = context.on_cpu or request.tensor_parallel_size > 1
    backend = "mp" if many else "uni"
    yield Setting(
        "distributed_executor_backend",
        backend,
        "a process for each worker" if many else "one GPU needs no second process",
        expect={"parallel_config.distributed_executor_backend": backend},
    )
    yield Setting(
        "tensor_parallel_size",
        request.tensor_parallel_size,
        f"divides {request.model.num_heads} attention heads",
        expect={"parallel_config.tensor_parallel_size": request.tensor_parallel_size},
    )
    yield Setting(
        "pipeline_parallel_size",
        1,
        "depths are captured in one decoder, not across stages",
        expect={"parallel_config.pipeline_parallel_size": 1},
    )
    yield Setting(
        "data_parallel_size",
        1,
        "one engine, one spool",
        expect={"parallel_config.data_parallel_size": 1},
    )
    yield Setting(
        "enable_expert_parallel",
        False,
        "with it a DeepSeek layer may hand on token-sharded rows (from 0.25.0)",
        expect={"parallel_config.enable_expert_parallel": False},
    )
    property_expect = (
        {"use_v2_model_runner": False} if request.engine.has("v2_runner_property") else {}
    )
    yield Setting(
        "VLLM_USE_V2_MODEL_RUNNER",
        "0",
        "V2 orders batch rows by length and captures by other code; what is proved is V1",
        "environment",
        expect=property_expect,
    )


def _offline() -> Iterator[Setting]:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        yield Setting(name, "1", "a missing file must fail here and not be fetched", "environment")
    yield Setting("VLLM_NO_USAGE_STATS", "1", "nothing is reported to anybody", "environment")
    yield Setting(
        "TOKENIZERS_PARALLELISM", "false", "no thread pool before worker processes", "environment"
    )


def _cpu(context: Context) -> Iterator[Setting]:
    request = context.request
    # The engine's own loop polls on one core. A team of threads that shares its cores waits in
    # spins at every barrier: on 2 busy cores 2 threads took 2 to 10 times as long as 1.
    threads = max(1, (request.platform.cores - 1) // request.tensor_parallel_size)
    yield Setting(
        "VLLM_CPU_OMP_THREADS_BIND",
        "nobind",
        "'auto' wants a NUMA node for each worker and keeps cores for itself",
        "environment",
    )
    yield Setting(
        "OMP_NUM_THREADS",
        str(threads),
        f"of {request.platform.cores} cores one is the engine loop's; "
        f"{request.tensor_parallel_size} workers share the rest",
        "environment",
    )
    yield _cpu_ops(context)
    if request.model.is_mla and not context.mla:
        yield Setting(
            "VLLM_MLA_DISABLE",
            "1",
            "the same weights and maths as plain attention, where latent attention is not used",
            "environment",
            expect={"model_config.use_mla": False},
        )
    if context.request.engine.takes("attention_backend"):
        backend = "CPU_MLA" if context.mla else "CPU_ATTN"
        yield Setting(
            "attention_backend",
            backend,
            "pinned: a host with AMX would silently take a backend that only knows bfloat16",
            expect={"attention_config.backend": f"AttentionBackendEnum.{backend}"},
        )


def _cpu_ops(context: Context) -> Setting:
    ops = ["-rotary_embedding", "all"]
    why = "the CPU rotary kernel is wrong for queries of more than one head"
    if context.request.engine.has("cpu_ops_compiled"):
        ops.insert(1, "-rms_norm")
        why += ", the norm's for rows that lie apart, such as DeepSeek's latent ones"
    return Setting(
        "compilation_config",
        {"custom_ops": ops},
        f"{why}; off means torch's own",
        expect={"compilation_config.custom_ops": ops},
    )


def _preloads(context: Context) -> Iterator[Setting]:
    model, modules = context.request.model, []
    if model.weights_at_load:
        why = "registers the loader that makes weights from a plan"
        modules.append(("harness.inside.seeded", why))
    if context.on_cpu and model.quantization == "int4":
        why = "vLLM's INT4 expert kernel needs AMX or a GPU; the stand-in keeps its loader"
        modules.append(("harness.inside.int4_cpu", why))
    if context.on_cpu and context.request.engine.has("cpu_wants_libraries"):
        why = "this release refuses to start without two libraries that only make it faster"
        modules.append(("harness.inside.cpu_libraries", why))
    for name, why in modules:
        yield Setting(name, True, why, "preload")
    if modules:
        names = ",".join(name for name, _ in modules)
        yield Setting("HARNESS_PRELOAD", names, "names them to the workers", "environment")


def _cuda(context: Context) -> Iterator[Setting]:
    yield Setting(
        "gpu_memory_utilization",
        context.request.gpu_memory_utilization,
        "leaves room for staged rows beside weights and cache",
    )
    yield Setting(
        "VLLM_USE_FLASHINFER_SAMPLER",
        "0",
        "one greedy token is sampled and thrown away; no kernel is built for it",
        "environment",
    )
    if context.request.model.quantization in (None, "int4"):
        yield Setting(
            "VLLM_USE_DEEP_GEMM", "0", "its FP8 kernels have no work in this model", "environment"
        )
