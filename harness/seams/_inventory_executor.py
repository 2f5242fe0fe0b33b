"""Seams of the executor, through which the generator drives its workers."""

from __future__ import annotations

from harness.seams._uses import PATCHES, TESTS, V03, V04, call
from harness.seams.seam import Kind, Seam, Use

_EXECUTOR = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"
_GENERATOR = "vllm_hidden_states_generator.py"

SEAMS = (
    Seam(
        "executor",
        Kind.CLASS,
        (_EXECUTOR,),
        tuple(Use(by, (call("vllm_config"),), note=_GENERATOR) for by in (V03, V04)),
    ),
    Seam(
        "executor.collective_rpc",
        Kind.METHOD,
        (f"{_EXECUTOR}.collective_rpc",),
        tuple(
            Use(
                by,
                (
                    call(positional=1),
                    call("args", positional=1),
                    call("unique_reply_rank", positional=1),
                ),
                note=_GENERATOR,
            )
            for by in (V03, V04)
        ),
        owners=("MultiprocExecutor",),
        note="one reply was a list of one in 0.11.0, and is bare from 0.11.1",
    ),
    Seam(
        "executor.execute_model",
        Kind.METHOD,
        (f"{_EXECUTOR}.execute_model",),
        tuple(Use(by, (call(positional=1),), note=_GENERATOR) for by in (V03, V04)),
        owners=("MultiprocExecutor",),
    ),
    Seam(
        "executor.sample_tokens",
        Kind.METHOD,
        (f"{_EXECUTOR}.sample_tokens",),
        (
            Use(V04, (call(positional=1),), note=_GENERATOR),
            Use(PATCHES, (call(positional=1),), optional=True, note="absent in 0.11.0"),
        ),
        owners=("MultiprocExecutor",),
        note="came with two-phase execution in 0.11.1",
    ),
    Seam(
        "executor.initialize_from_config",
        Kind.METHOD,
        (f"{_EXECUTOR}.initialize_from_config",),
        tuple(Use(by, (call(positional=1),), note=_GENERATOR) for by in (V03, V04)),
        note="warms up until 0.26.0",
    ),
    Seam(
        "executor.compile_or_warm_up_model",
        Kind.METHOD,
        (f"{_EXECUTOR}.compile_or_warm_up_model",),
        (Use(PATCHES, (call(),), optional=True, note="its own call from 0.27.0"),),
    ),
    Seam(
        "executor.get_kv_cache_specs",
        Kind.METHOD,
        (f"{_EXECUTOR}.get_kv_cache_specs",),
        (Use(TESTS, (call(),)),),
    ),
    Seam(
        "executor.max_concurrent_batches",
        Kind.ATTRIBUTE,
        (f"{_EXECUTOR}.max_concurrent_batches",),
        (Use(PATCHES, optional=True, note="batches in flight: one, without async scheduling"),),
    ),
    Seam(
        "executor.shutdown",
        Kind.METHOD,
        (f"{_EXECUTOR}.shutdown",),
        tuple(Use(by, (call(),), note=_GENERATOR) for by in (V03, V04)),
    ),
    Seam(
        "executor.kv-layout",
        Kind.FUNCTION,
        ("vllm.v1.attention.backends.utils:resolve_kv_cache_layout",),
        (Use(PATCHES, optional=True, note="what the engine core calls before workers start"),),
    ),
    Seam(
        "executor.get_supported_kv_cache_layouts",
        Kind.METHOD,
        (f"{_EXECUTOR}.get_supported_kv_cache_layouts",),
        (Use(PATCHES, (call(),), optional=True, note="asked where a release resolves a layout"),),
    ),
    Seam(
        "executor.set_kv_cache_layout",
        Kind.METHOD,
        (f"{_EXECUTOR}.set_kv_cache_layout",),
        (
            Use(
                PATCHES,
                (call(positional=1), call(positional=2)),
                optional=True,
                either=True,
                note="told the layout's name",
            ),
        ),
        note="wants cp_kv_cache_interleave_size too from 0.33.0",
    ),
    Seam(
        "executor-uni.collective_rpc",
        Kind.METHOD,
        (
            "vllm.v1.executor.uniproc_executor:UniProcExecutor.collective_rpc",
            "vllm.executor.uniproc_executor:UniProcExecutor.collective_rpc",
        ),
        (Use(TESTS, (call(positional=1),)),),
    ),
)
