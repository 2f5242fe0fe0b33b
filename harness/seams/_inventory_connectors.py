"""Seams of hs-connectors: the connectors that speculators 0.9 brings for vLLM's own capture."""

from __future__ import annotations

from harness.seams._uses import CONNECTORS, NATIVE, call, names
from harness.seams.seam import Kind, Seam, Use

_V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
_BASE = f"{_V1}.base:KVConnectorBase_V1"
_STOCK = f"{_V1}.example_hidden_states_connector:ExampleHiddenStatesConnector"
_MOONCAKE = "mooncake_hidden_states_connector.py"
_FP8 = "fp8_hidden_states_connector.py"

SEAMS = (
    Seam(
        "connector-base",
        Kind.CLASS,
        (_BASE,),
        (Use(CONNECTORS, (call("vllm_config", "role", "kv_cache_config"),), note=_MOONCAKE),),
    ),
    # What vLLM calls on a connector: an override takes what the base is given.
    *(
        Seam(
            f"connector-base.{name}",
            Kind.METHOD,
            (f"{_BASE}.{name}",),
            (Use(CONNECTORS, (call(positional=count),), note=f"{_MOONCAKE} overrides it"),),
        )
        for name, count in (
            ("start_load_kv", 1),
            ("wait_for_layer_load", 1),
            ("save_kv_layer", 3),
            ("wait_for_save", 0),
            ("register_kv_caches", 1),
            ("get_finished", 1),
            ("get_num_new_matched_tokens", 2),
            ("update_state_after_alloc", 3),
            ("build_connector_meta", 1),
            ("request_finished", 2),
            ("get_required_kvcache_layout", 1),
        )
    ),
    *(
        Seam(
            f"connector-base.{name}",
            Kind.METHOD,
            (f"{_BASE}.{name}",),
            (Use(CONNECTORS, (call(),), note=_MOONCAKE),),
        )
        for name in ("has_connector_metadata", "_get_connector_metadata")
    ),
    *names(
        "connector-base",
        _BASE,
        Kind.ATTRIBUTE,
        "_vllm_config _kv_transfer_config",
        Use(CONNECTORS, note=_MOONCAKE),
    ),
    Seam(
        "connector-base.metadata",
        Kind.CLASS,
        (f"{_V1}.base:KVConnectorMetadata",),
        (Use(CONNECTORS, note=_MOONCAKE),),
    ),
    Seam(
        "connector-base.hybrid",
        Kind.CLASS,
        (f"{_V1}.base:SupportsHMA",),
        (Use(CONNECTORS, note=_MOONCAKE),),
    ),
    Seam(
        "connector-base.hybrid.request_finished_all_groups",
        Kind.METHOD,
        (f"{_V1}.base:SupportsHMA.request_finished_all_groups",),
        (Use(CONNECTORS, (call(positional=2),), note=f"{_MOONCAKE} overrides it"),),
    ),
    Seam(
        "connector-base.role",
        Kind.CLASS,
        (f"{_V1}.base:KVConnectorRole",),
        (Use(CONNECTORS, note=_MOONCAKE),),
    ),
    Seam(
        "connector.get_required_kvcache_layout",
        Kind.METHOD,
        (f"{_STOCK}.get_required_kvcache_layout",),
        (Use(CONNECTORS, (call(positional=1),), note=_MOONCAKE),),
    ),
    Seam(
        "connector._write_tensors",
        Kind.METHOD,
        (f"{_STOCK}._write_tensors",),
        (Use(CONNECTORS, (call(positional=4),), note=f"{_FP8} overrides it"),),
        owners=("ExampleHiddenStatesConnector",),
    ),
    Seam(
        "capture.cache-layer",
        Kind.CLASS,
        ("vllm.model_executor.models.extract_hidden_states:CacheOnlyAttentionLayer",),
        (Use(CONNECTORS, note=_MOONCAKE),),
    ),
    Seam(
        "kv.hidden-state-spec",
        Kind.CLASS,
        ("vllm.v1.kv_cache_interface:HiddenStateCacheSpec",),
        (Use(CONNECTORS, note=_MOONCAKE),),
    ),
    Seam(
        "config.layers",
        Kind.FUNCTION,
        ("vllm.config:get_layers_from_vllm_config",),
        (
            Use(NATIVE, (call(positional=3),), note="inside/connector.py"),
            Use(CONNECTORS, (call(positional=3),), note=_MOONCAKE),
        ),
    ),
    Seam(
        "scheduler-output",
        Kind.CLASS,
        ("vllm.v1.core.sched.output:SchedulerOutput",),
        (Use(CONNECTORS, note=_MOONCAKE),),
    ),
    Seam(
        "attention.metadata",
        Kind.CLASS,
        ("vllm.v1.attention.backend:AttentionMetadata",),
        (Use(CONNECTORS, note=_MOONCAKE),),
    ),
    Seam(
        "logger",
        Kind.FUNCTION,
        ("vllm.logger:init_logger",),
        (Use(CONNECTORS, (call(positional=1),), note=_MOONCAKE),),
    ),
)
