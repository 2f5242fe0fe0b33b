"""Seams inside a worker: worker, model runner, batch, distribution, model loading."""

from __future__ import annotations

from harness.seams._uses import CONNECTORS, NATIVE, PATCHED, PATCHES, TESTS, V03, V04, call, names
from harness.seams.seam import Kind, Seam, Use

_WORKER = "vllm.v1.worker.gpu_worker:Worker"
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_RUNNER_V2 = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
_BATCH = "vllm.v1.worker.gpu_input_batch:InputBatch"
_WRAPPERS = (
    "vllm.v1.worker.worker_base:WorkerWrapperBase",
    "vllm.worker.worker_base:WorkerWrapperBase",
)
_EXTENSION = "custom_worker.py"

WORKER = (
    Seam(
        "worker.get_kv_cache_spec",
        Kind.METHOD,
        (f"{_WORKER}.get_kv_cache_spec",),
        tuple(Use(by, (call(),), note="through collective_rpc") for by in (V03, V04)),
        owners=("Worker",),
    ),
    *names(
        "worker",
        _WORKER,
        Kind.ATTRIBUTE,
        "model_runner",
        Use(V03, note=_EXTENSION),
        Use(V04, note=_EXTENSION),
        Use(NATIVE, note="inside/worker.py"),
        Use(PATCHED),
        Use(PATCHES),
    ),
    *names(
        "worker",
        _WORKER,
        Kind.ATTRIBUTE,
        "rank local_rank device vllm_config",
        Use(TESTS),
    ),
    Seam(
        "worker.get_model",
        Kind.METHOD,
        (f"{_WORKER}.get_model",),
        (Use(TESTS, (call(),)),),
    ),
    Seam(
        "worker.execute_model",
        Kind.METHOD,
        (f"{_WORKER}.execute_model",),
        (Use(PATCHES, (call(positional=1),)),),
        owners=("Worker",),
    ),
    Seam(
        "worker.sample_tokens",
        Kind.METHOD,
        (f"{_WORKER}.sample_tokens",),
        (Use(PATCHES, (call(positional=1),), optional=True, note="absent in 0.11.0"),),
        owners=("Worker",),
    ),
    Seam(
        "worker-wrapper.init_worker",
        Kind.METHOD,
        tuple(f"{path}.init_worker" for path in _WRAPPERS),
        tuple(
            Use(by, note="mixes worker_extension_cls into the worker")
            for by in (V03, V04, NATIVE, PATCHED, PATCHES)
        ),
        note="moved in 0.11.1",
    ),
    Seam(
        "cpu-worker",
        Kind.CLASS,
        ("vllm.v1.worker.cpu_worker:CPUWorker",),
        (Use(TESTS),),
    ),
)

RUNNER = (
    Seam(
        "runner.execute_model",
        Kind.METHOD,
        (f"{_RUNNER}.execute_model",),
        (
            Use(PATCHED, (call(positional=1), call("intermediate_tensors", positional=1))),
            Use(PATCHES, (call(positional=1), call("intermediate_tensors", positional=1))),
        ),
        owners=("GPUModelRunner",),
        note="the rows of a step are keyed around it",
    ),
    Seam(
        "runner.sample_tokens",
        Kind.METHOD,
        (f"{_RUNNER}.sample_tokens",),
        (Use(PATCHES, (call(positional=1),), optional=True, note="absent in 0.11.0"),),
        owners=("GPUModelRunner",),
    ),
    Seam(
        "runner.get_model",
        Kind.METHOD,
        (f"{_RUNNER}.get_model",),
        (Use(TESTS, (call(),)),),
    ),
    *names(
        "runner",
        _RUNNER,
        Kind.ATTRIBUTE,
        "model",
        Use(V03, note=_EXTENSION),
        Use(V04, note=_EXTENSION),
        Use(NATIVE, note="inside/worker.py"),
        Use(PATCHED),
        Use(PATCHES),
    ),
    *names("runner", _RUNNER, Kind.ATTRIBUTE, "dtype", Use(NATIVE), Use(PATCHED), Use(PATCHES)),
    *names(
        "runner",
        _RUNNER,
        Kind.ATTRIBUTE,
        "input_batch",
        Use(V04, note=_EXTENSION),
        Use(PATCHED),
        Use(PATCHES),
    ),
    *names(
        "runner",
        _RUNNER,
        Kind.ATTRIBUTE,
        "requests",
        Use(NATIVE, note="inside/worker.py counts them"),
        Use(PATCHED),
        Use(PATCHES),
    ),
    *names(
        "runner",
        _RUNNER,
        Kind.ATTRIBUTE,
        "use_async_scheduling",
        Use(PATCHED, optional=True, note="asked where it is"),
        Use(PATCHES, optional=True, note="asked where it is"),
    ),
    *names(
        "runner",
        _RUNNER,
        Kind.ATTRIBUTE,
        "cache_config",
        Use(NATIVE, note="inside/worker.py tells its block size"),
        Use(PATCHED),
    ),
    *names(
        "runner",
        _RUNNER,
        Kind.ATTRIBUTE,
        "execute_model_state use_aux_hidden_state_outputs",
        Use(PATCHES, optional=True, note="asked where it is"),
    ),
    Seam(
        "runner-output",
        Kind.CLASS,
        ("vllm.v1.outputs:ModelRunnerOutput",),
        (Use(TESTS),),
        note="what sample_tokens returns and update_from_output takes",
    ),
    Seam(
        "cpu-runner",
        Kind.CLASS,
        ("vllm.v1.worker.cpu_model_runner:CPUModelRunner",),
        (Use(TESTS),),
        note="a GPUModelRunner",
    ),
    Seam(
        "runner-v2",
        Kind.CLASS,
        (_RUNNER_V2,),
        (Use(PATCHES, optional=True, note="must not be the one in use"),),
        note="came in 0.12.0; the default for all models from 0.29.0",
    ),
    Seam(
        "runner-v2.execute_model",
        Kind.METHOD,
        (f"{_RUNNER_V2}.execute_model",),
        (Use(PATCHES, optional=True),),
    ),
    *names(
        "runner-v2",
        _RUNNER_V2,
        Kind.ATTRIBUTE,
        "model input_batch",
        Use(PATCHES, optional=True),
    ),
    Seam(
        "runner-v2.cpu",
        Kind.MODULE,
        ("vllm.v1.worker.cpu.model_runner",),
        (Use(PATCHED, optional=True, note="must not be the one in use"),),
        note="came in 0.23.0",
    ),
    *names(
        "input-batch",
        _BATCH,
        Kind.ATTRIBUTE,
        "req_ids num_reqs num_computed_tokens_cpu",
        Use(PATCHED),
        Use(PATCHES),
    ),
    *names(
        "input-batch",
        _BATCH,
        Kind.ATTRIBUTE,
        "req_id_to_index",
        Use(V04, note=_EXTENSION),
        Use(TESTS),
    ),
    *names(
        "cached-request",
        "vllm.v1.worker.gpu_input_batch:CachedRequestState",
        Kind.FIELD,
        "prompt_token_ids sampling_params",
        Use(PATCHED),
        Use(PATCHES),
    ),
    *names(
        "cached-request",
        "vllm.v1.worker.gpu_input_batch:CachedRequestState",
        Kind.FIELD,
        "req_id num_computed_tokens",
        Use(TESTS),
    ),
    *names(
        "new-request",
        "vllm.v1.core.sched.output:NewRequestData",
        Kind.FIELD,
        "prompt_token_ids sampling_params num_computed_tokens",
        Use(TESTS),
    ),
    *names(
        "new-request",
        "vllm.v1.core.sched.output:NewRequestData",
        Kind.FIELD,
        "req_id",
        Use(TESTS),
        Use(CONNECTORS),
    ),
)

DISTRIBUTION = (
    *(
        Seam(
            f"distributed.{name}",
            Kind.FUNCTION,
            (f"vllm.distributed:{name}",),
            tuple(Use(by, (call(),), note=_EXTENSION) for by in (V03, V04)),
        )
        for name in ("get_pp_group", "get_tp_group")
    ),
    *names(
        "distributed.group",
        "vllm.distributed.parallel_state:GroupCoordinator",
        Kind.ATTRIBUTE,
        "is_first_rank is_last_rank rank_in_group",
        Use(V03, note=_EXTENSION),
        Use(V04, note=_EXTENSION),
    ),
    Seam(
        "distributed.tensor-rank",
        Kind.FUNCTION,
        ("vllm.distributed.parallel_state:get_tensor_model_parallel_rank",),
        (
            Use(NATIVE, (call(),), note="inside/worker.py"),
            Use(PATCHED, (call(),)),
            Use(CONNECTORS, (call(),)),
        ),
    ),
    Seam(
        "intermediate-tensors",
        Kind.CLASS,
        ("vllm.sequence:IntermediateTensors",),
        tuple(Use(by, (call(positional=1),), note=_EXTENSION) for by in (V03, V04)),
    ),
)

PLATFORM = (
    Seam(
        "platform.current",
        Kind.ATTRIBUTE,
        ("vllm.platforms:current_platform",),
        (Use(NATIVE, note="inside/int4_cpu.py"),),
    ),
    Seam(
        "platform.is_cpu",
        Kind.METHOD,
        ("vllm.platforms.interface:Platform.is_cpu",),
        (Use(NATIVE, (call(),)),),
    ),
    *names(
        "platform",
        "vllm.platforms.interface:Platform",
        Kind.ATTRIBUTE,
        "device_name",
        Use(NATIVE, optional=True),
    ),
    Seam(
        "attention.cpu-mla",
        Kind.MODULE,
        ("vllm.v1.attention.backends.mla.cpu_mla",),
        (Use(NATIVE, optional=True, note="inside/facts.py asks for the file"),),
    ),
    Seam(
        "loader.register",
        Kind.FUNCTION,
        ("vllm.model_executor.model_loader:register_model_loader",),
        (Use(NATIVE, (call(positional=1),), note="weights made from a seed"),),
    ),
    Seam(
        "loader.base",
        Kind.CLASS,
        ("vllm.model_executor.model_loader.base_loader:BaseModelLoader",),
        (Use(NATIVE, (call(positional=1),)),),
    ),
    *(
        Seam(
            f"loader.base.{name}",
            Kind.METHOD,
            (f"vllm.model_executor.model_loader.base_loader:BaseModelLoader.{name}",),
            (Use(NATIVE, (call(positional=count),)),),
        )
        for name, count in (("load_weights", 2), ("download_model", 1))
    ),
)

SEAMS = (*WORKER, *RUNNER, *DISTRIBUTION, *PLATFORM)
