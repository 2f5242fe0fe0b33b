"""Seams of the engine's front, scheduler and cache configuration."""

from __future__ import annotations

from harness.seams._uses import CONNECTORS, NATIVE, PATCHED, PATCHES, TESTS, V03, V04, call, names
from harness.seams.seam import Call, Consumer, Kind, Seam, Use

_KV = "vllm.v1.core.kv_cache_utils"
# What plans the cache moved there in 0.33.0; hashes and block sizes stayed.
_PLAN = "vllm.v1.core.kv_cache_planning"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_REQUEST = "vllm.v1.request:Request"
_HASH = ("vllm.utils.hashing:get_hash_fn_by_name", "vllm.utils:get_hash_fn_by_name")
_GENERATOR = "vllm_hidden_states_generator.py"
_BACK = "a patch puts it back where 0.3.0 looks for it"

_SCHEDULER_KEYS = ("vllm_config", "kv_cache_config", "structured_output_manager")
_REQUEST_KEYS = (
    "request_id",
    "prompt_token_ids",
    "sampling_params",
    "pooling_params",
    "arrival_time",
)
_GROUP_KEYS = ("vllm_config", "kv_cache_groups", "available_memory")


def _plan(name: str) -> tuple[str, str]:
    """Places of a function that plans the cache, newest first."""
    return f"{_PLAN}:{name}", f"{_KV}:{name}"


def _at_first(name: str, by: Consumer, made: Call) -> Use:
    """A call of 0.3.0 or 0.4.0, which know the first place only."""
    return Use(by, (made,), paths=(f"{_KV}:{name}",), note=_GENERATOR)


FRONT = (
    Seam(
        "llm",
        Kind.CLASS,
        ("vllm:LLM",),
        (Use(NATIVE, (call("model"),), note="inside/engine.py"), Use(PATCHED, (call("model"),))),
        note="every other keyword goes through **kwargs to EngineArgs",
    ),
    Seam(
        "llm.generate",
        Kind.METHOD,
        ("vllm:LLM.generate",),
        tuple(Use(by, (call("use_tqdm", positional=2),)) for by in (NATIVE, PATCHED)),
    ),
    *(
        Seam(
            f"llm.{name}",
            Kind.METHOD,
            (f"vllm:LLM.{name}",),
            tuple(
                Use(
                    by,
                    (call("use_tqdm", positional=count),),
                    optional=True,
                    note="inside/engine.py hands a batch over at once where it is not there",
                )
                for by in (NATIVE, PATCHED)
            ),
            note="came in 0.17.0",
        )
        for name, count in (("enqueue", 2), ("wait_for_completion", 0))
    ),
    Seam(
        "llm.collective_rpc",
        Kind.METHOD,
        ("vllm:LLM.collective_rpc",),
        tuple(
            Use(by, (call(positional=1), call("args", positional=1))) for by in (NATIVE, PATCHED)
        ),
    ),
    *names("llm", "vllm:LLM", Kind.ATTRIBUTE, "llm_engine", Use(NATIVE), Use(PATCHED)),
    Seam(
        "llm-engine.vllm_config",
        Kind.ATTRIBUTE,
        ("vllm.v1.engine.llm_engine:LLMEngine.vllm_config",),
        (Use(NATIVE), Use(PATCHED)),
    ),
    Seam(
        "sampling-params",
        Kind.CLASS,
        ("vllm:SamplingParams", "vllm.sampling_params:SamplingParams"),
        (
            *(
                Use(
                    by,
                    (call("max_tokens", "temperature"),),
                    paths=("vllm.sampling_params:SamplingParams",),
                    note=_GENERATOR,
                )
                for by in (V03, V04)
            ),
            *(
                Use(
                    by,
                    (
                        call(
                            "max_tokens",
                            "temperature",
                            "detokenize",
                            "prompt_logprobs",
                            "extra_args",
                        ),
                    ),
                    paths=("vllm:SamplingParams",),
                )
                for by in (NATIVE, PATCHED)
            ),
        ),
    ),
    *names(
        "sampling-params",
        "vllm.sampling_params:SamplingParams",
        Kind.FIELD,
        "extra_args",
        Use(PATCHED, note="carries the key of a row to the worker"),
        Use(NATIVE),
    ),
    *names("request-output", "vllm:RequestOutput", Kind.ATTRIBUTE, "prompt_logprobs", Use(NATIVE)),
    Seam(
        "logprob.logprob",
        Kind.FIELD,
        ("vllm.logprobs:Logprob.logprob", "vllm.sequence:Logprob.logprob"),
        (Use(NATIVE, note="inside/engine.py, the canary"),),
    ),
    Seam(
        "version",
        Kind.ATTRIBUTE,
        ("vllm:__version__",),
        (Use(NATIVE, optional=True), Use(V03, note="config_generator.py"), Use(V04)),
    ),
)

CACHE = (
    Seam(
        "kv.groups-uniform",
        Kind.FUNCTION,
        _plan("_get_kv_cache_groups_uniform_spec"),
        (
            *(
                _at_first("_get_kv_cache_groups_uniform_spec", by, call(positional=1))
                for by in (V03, V04)
            ),
            Use(PATCHES, note=_BACK),
        ),
        note="moved in 0.33.0",
    ),
    Seam(
        "kv.unify-hybrid",
        Kind.FUNCTION,
        _plan("unify_hybrid_kv_cache_specs"),
        (
            *(
                _at_first("unify_hybrid_kv_cache_specs", by, call(positional=1))
                for by in (V03, V04)
            ),
            Use(PATCHES, note=_BACK),
        ),
        note="moved in 0.33.0",
    ),
    Seam(
        "kv.config-from-groups",
        Kind.FUNCTION,
        _plan("get_kv_cache_config_from_groups"),
        (
            _at_first("get_kv_cache_config_from_groups", V03, call(*_GROUP_KEYS, "kv_cache_specs")),
            _at_first("get_kv_cache_config_from_groups", V04, call(*_GROUP_KEYS)),
            Use(PATCHES, note=f"the patch drops or passes kv_cache_specs; {_BACK}"),
        ),
        note="kv_cache_specs went in 0.12.0; moved in 0.33.0",
    ),
    Seam(
        "kv.groups",
        Kind.FUNCTION,
        _plan("get_kv_cache_groups"),
        (Use(TESTS, (call(positional=2),)),),
    ),
    Seam(
        "kv.configs",
        Kind.FUNCTION,
        _plan("get_kv_cache_configs"),
        (Use(TESTS, (call(positional=3),)),),
    ),
    Seam(
        "kv.block-hasher",
        Kind.FUNCTION,
        (f"{_KV}:get_request_block_hasher",),
        (
            Use(V04, (call(positional=2),)),
            Use(TESTS, (call(positional=2),)),
        ),
        note="its first parameter is hash_block_size from 0.24.0: pass it by place",
    ),
    Seam(
        "kv.init-none-hash",
        Kind.FUNCTION,
        (f"{_KV}:init_none_hash",),
        (
            Use(V04, (call(positional=1),)),
            Use(TESTS, (call(positional=1),)),
        ),
    ),
    Seam(
        "kv.hash-function",
        Kind.FUNCTION,
        _HASH,
        (
            Use(V04, (call(positional=1),), paths=_HASH[:1], note=_GENERATOR),
            Use(TESTS, (call(positional=1),)),
        ),
        note="moved in 0.11.1",
    ),
    Seam(
        "kv.resolve-block-sizes",
        Kind.FUNCTION,
        (f"{_KV}:resolve_kv_cache_block_sizes",),
        (Use(PATCHES, optional=True, note="what the engine core asks for the same size"),),
        note="came in 0.20.0",
    ),
    Seam(
        "kv.num_blocks",
        Kind.FIELD,
        ("vllm.v1.kv_cache_interface:KVCacheConfig.num_blocks",),
        (Use(V03), Use(V04), Use(TESTS)),
    ),
    Seam(
        "kv.kv_cache_groups",
        Kind.FIELD,
        ("vllm.v1.kv_cache_interface:KVCacheConfig.kv_cache_groups",),
        (
            Use(PATCHES, note="their specs hold the block size that the scheduler is given"),
            Use(CONNECTORS),
        ),
    ),
    Seam(
        "kv.group.kv_cache_spec",
        Kind.FIELD,
        ("vllm.v1.kv_cache_interface:KVCacheGroupSpec.kv_cache_spec",),
        (Use(PATCHES), Use(CONNECTORS)),
    ),
    Seam(
        "kv.spec.block_size",
        Kind.FIELD,
        ("vllm.v1.kv_cache_interface:KVCacheSpec.block_size",),
        (Use(PATCHES, note="the block size that the workers return"), Use(CONNECTORS)),
    ),
)

SCHEDULING = (
    Seam(
        "scheduler",
        Kind.CLASS,
        (_SCHEDULER,),
        (
            Use(V03, (call(*_SCHEDULER_KEYS),), note=_GENERATOR),
            Use(V04, (call(*_SCHEDULER_KEYS, "block_size"),), note=_GENERATOR),
            Use(PATCHES, note="the patch passes block_size where the release asks for it"),
            Use(PATCHED, note="inside/scheduler.py makes a subclass"),
        ),
        note="block_size is required from 0.11.1",
    ),
    Seam(
        "scheduler.add_request",
        Kind.METHOD,
        (f"{_SCHEDULER}.add_request",),
        tuple(Use(by, (call(positional=1),), note=_GENERATOR) for by in (V03, V04)),
        owners=("Scheduler",),
    ),
    Seam(
        "scheduler.schedule",
        Kind.METHOD,
        (f"{_SCHEDULER}.schedule",),
        tuple(Use(by, (call(),), note=_GENERATOR) for by in (V03, V04)),
        owners=("Scheduler",),
    ),
    Seam(
        "scheduler.finish_requests",
        Kind.METHOD,
        (f"{_SCHEDULER}.finish_requests",),
        tuple(Use(by, (call(positional=2),), note=_GENERATOR) for by in (V03, V04)),
        owners=("Scheduler",),
        result_unused=True,
    ),
    Seam(
        "scheduler.update_from_output",
        Kind.METHOD,
        (f"{_SCHEDULER}.update_from_output",),
        (Use(TESTS, (call(positional=2),)),),
        owners=("Scheduler",),
    ),
    Seam(
        "scheduler.get_grammar_bitmask",
        Kind.METHOD,
        (f"{_SCHEDULER}.get_grammar_bitmask",),
        (Use(PATCHES, optional=True, note="no prompt has a grammar: None is sampled with"),),
        note="takes less from 0.11.1",
    ),
    Seam(
        "scheduler.has_requests",
        Kind.METHOD,
        (f"{_SCHEDULER}.has_requests",),
        (Use(TESTS, (call(),)),),
    ),
    Seam(
        "scheduler.requests",
        Kind.ATTRIBUTE,
        (f"{_SCHEDULER}.requests",),
        (Use(PATCHES, note="which requests go on, and which a call left behind"),),
    ),
    *names(
        "scheduler-output",
        "vllm.v1.core.sched.output:SchedulerOutput",
        Kind.FIELD,
        "num_scheduled_tokens",
        Use(V03),
        Use(V04),
        Use(PATCHED, note="inside/patched.py"),
        Use(PATCHES),
    ),
    *names(
        "scheduler-output",
        "vllm.v1.core.sched.output:SchedulerOutput",
        Kind.FIELD,
        "total_num_scheduled_tokens",
        Use(V03),
        Use(V04),
        Use(PATCHES),
    ),
    *names(
        "scheduler-output",
        "vllm.v1.core.sched.output:SchedulerOutput",
        Kind.FIELD,
        "finished_req_ids",
        Use(PATCHED, note="inside/patched.py"),
        Use(PATCHES),
    ),
    *names(
        "scheduler-output",
        "vllm.v1.core.sched.output:SchedulerOutput",
        Kind.FIELD,
        "scheduled_new_reqs",
        Use(TESTS),
        Use(CONNECTORS),
    ),
    *names(
        "scheduler-output",
        "vllm.v1.core.sched.output:SchedulerOutput",
        Kind.FIELD,
        "scheduled_cached_reqs",
        Use(TESTS),
    ),
    Seam(
        "structured-output",
        Kind.CLASS,
        ("vllm.v1.structured_output:StructuredOutputManager",),
        tuple(Use(by, (call("vllm_config"),), note=_GENERATOR) for by in (V03, V04)),
    ),
    Seam(
        "request",
        Kind.CLASS,
        (_REQUEST,),
        (
            Use(V03, (call(*_REQUEST_KEYS, "eos_token_id"),), note=_GENERATOR),
            Use(V04, (call(*_REQUEST_KEYS, "eos_token_id", "block_hasher"),), note=_GENERATOR),
            Use(PATCHES, note="the patch passes eos_token_id where the release takes it"),
        ),
        note="eos_token_id went in 0.17.0",
    ),
    *names(
        "request",
        _REQUEST,
        Kind.ATTRIBUTE,
        "request_id prompt_token_ids",
        Use(NATIVE, note="inside/connector.py"),
        Use(PATCHES),
        Use(CONNECTORS),
    ),
    *names(
        "request",
        _REQUEST,
        Kind.ATTRIBUTE,
        "kv_transfer_params",
        Use(NATIVE, note="inside/connector.py"),
        Use(CONNECTORS),
    ),
    *names(
        "request",
        _REQUEST,
        Kind.ATTRIBUTE,
        "status num_computed_tokens",
        Use(NATIVE, note="inside/connector.py"),
        Use(PATCHES),
    ),
    *names("request", _REQUEST, Kind.ATTRIBUTE, "all_token_ids", Use(CONNECTORS)),
    Seam(
        "request-status.FINISHED_ABORTED",
        Kind.FIELD,
        ("vllm.v1.request:RequestStatus.FINISHED_ABORTED",),
        (Use(V03), Use(V04), Use(NATIVE, note="its name is what is matched")),
    ),
)

SEAMS = (*FRONT, *CACHE, *SCHEDULING)
