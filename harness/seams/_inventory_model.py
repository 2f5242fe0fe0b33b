"""Seams of the models, of vLLM's own hidden-state capture and of the INT4 stand-in."""

from __future__ import annotations

from harness.seams._uses import CONNECTORS, NATIVE, PATCHED, PATCHES, V03, V04, call, names
from harness.seams.seam import Kind, Seam, Use

_DEEPSEEK = "vllm.model_executor.models.deepseek_v2"
_MODEL = f"{_DEEPSEEK}:DeepseekV2Model"
_CAUSAL = f"{_DEEPSEEK}:DeepseekV2ForCausalLM"
_KIMI = "vllm.model_executor.models.kimi_k25:KimiK25ForConditionalGeneration"
_LLAMA = "vllm.model_executor.models.llama"
_LLAMA_EMBED = (
    f"{_LLAMA}:LlamaModel.embed_input_ids",
    f"{_LLAMA}:LlamaModel.get_input_embeddings",
)
_EMBED = (f"{_MODEL}.embed_input_ids", f"{_MODEL}.get_input_embeddings")
_FORWARD = call(positional=4)
_LAYER = call("hidden_states", "positions", "residual")
_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"
_STOCK = f"{_CONNECTOR}:ExampleHiddenStatesConnector"
_WNA16 = "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe"
_METHOD = (
    f"{_WNA16}.compressed_tensors_moe_wna16:CompressedTensorsWNA16MoEMethod",
    f"{_WNA16}:CompressedTensorsWNA16MoEMethod",
)
_MARLIN = (
    f"{_WNA16}.compressed_tensors_moe_wna16_marlin:CompressedTensorsWNA16MarlinMoEMethod",
    f"{_WNA16}:CompressedTensorsWNA16MarlinMoEMethod",
)
_PLAIN = (
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod",
    "vllm.model_executor.layers.fused_moe.layer:UnquantizedFusedMoEMethod",
)
_EXTENSION = "custom_worker.py"
_INT4 = "inside/int4_cpu.py"

MODELS = (
    Seam(
        "eagle3.supports",
        Kind.FUNCTION,
        ("vllm.model_executor.models.interfaces:supports_eagle3",),
        (Use(V03, (call(positional=1),), note=_EXTENSION), Use(PATCHES, (call(positional=1),))),
    ),
    Seam(
        "eagle3.protocol",
        Kind.CLASS,
        ("vllm.model_executor.models.interfaces:SupportsEagle3",),
        (Use(PATCHES, optional=True),),
    ),
    Seam(
        "eagle3.default-layers",
        Kind.METHOD,
        tuple(
            f"vllm.model_executor.models.interfaces:SupportsEagle3.{name}"
            for name in (
                "get_eagle3_default_aux_hidden_state_layers",
                "get_eagle3_aux_hidden_state_layers",
            )
        ),
        (Use(NATIVE, optional=True, note="never asked: every depth is named"),),
        note="renamed in 0.18.0",
    ),
    Seam(
        "deepseek.causal",
        Kind.CLASS,
        (_CAUSAL,),
        (Use(NATIVE), Use(PATCHED), Use(PATCHES)),
        note="SupportsEagle3 from 0.18.0",
    ),
    *names(
        "deepseek.causal",
        _CAUSAL,
        Kind.ATTRIBUTE,
        "model",
        Use(V03, note=_EXTENSION),
        Use(V04, note=_EXTENSION),
        Use(NATIVE, note="inside/modelwalk.py"),
        Use(PATCHED),
        Use(PATCHES),
    ),
    Seam(
        "deepseek.causal.compute_logits",
        Kind.METHOD,
        (f"{_CAUSAL}.compute_logits",),
        (Use(NATIVE, (call(positional=1),), note="inside/worker.py"),),
    ),
    Seam("deepseek.model", Kind.CLASS, (_MODEL,), (Use(NATIVE), Use(PATCHED), Use(PATCHES))),
    Seam(
        "deepseek.model.forward",
        Kind.METHOD,
        (f"{_MODEL}.forward",),
        tuple(
            Use(by, (_FORWARD,), note="its replacement takes what callers pass")
            for by in (V03, V04)
        ),
        owners=("DeepseekV2Model",),
    ),
    Seam(
        "deepseek.model.embed",
        Kind.METHOD,
        _EMBED,
        (
            Use(V03, (call(positional=1),), paths=_EMBED[1:], note=_EXTENSION),
            Use(V04, (call(positional=1),), paths=_EMBED[:1], note=_EXTENSION),
            Use(PATCHES, (call(positional=1),)),
        ),
        note="renamed in 0.11.1",
    ),
    *names(
        "deepseek.model",
        _MODEL,
        Kind.ATTRIBUTE,
        "layers norm",
        Use(V03, note=_EXTENSION),
        Use(V04, note=_EXTENSION),
        Use(NATIVE, note="inside/modelwalk.py"),
        Use(PATCHED),
        Use(PATCHES),
    ),
    *names(
        "deepseek.model",
        _MODEL,
        Kind.ATTRIBUTE,
        "start_layer end_layer",
        Use(V03, note=_EXTENSION),
        Use(V04, note=_EXTENSION),
        Use(PATCHES),
    ),
    *names("deepseek.model", _MODEL, Kind.ATTRIBUTE, "embed_tokens", Use(NATIVE), Use(PATCHED)),
    *names(
        "deepseek.model",
        _MODEL,
        Kind.ATTRIBUTE,
        "aux_hidden_state_layers",
        Use(NATIVE, note="inside/worker.py"),
        Use(PATCHES, optional=True),
    ),
    Seam(
        "deepseek.layer.forward",
        Kind.METHOD,
        (f"{_DEEPSEEK}:DeepseekV2DecoderLayer.forward",),
        (
            Use(V03, (_LAYER,), note=_EXTENSION),
            Use(V04, (_LAYER,), note=_EXTENSION),
            Use(NATIVE, (_LAYER,), note="inside/witness.py names its arguments"),
            Use(PATCHED, (_LAYER,)),
            Use(PATCHES, (_LAYER,)),
        ),
        owners=("DeepseekV2DecoderLayer",),
        note="llama_4_scaling came with a default in 0.12.0",
    ),
    Seam(
        "llama.model.embed",
        Kind.METHOD,
        _LLAMA_EMBED,
        (
            Use(V03, (call(positional=1),), paths=_LLAMA_EMBED[1:], note=_EXTENSION),
            Use(V04, (call(positional=1),), paths=_LLAMA_EMBED[:1], note=_EXTENSION),
        ),
        note="the other family that the generator is used with; renamed in 0.11.1",
    ),
    Seam(
        "llama.model.forward",
        Kind.METHOD,
        (f"{_LLAMA}:LlamaModel.forward",),
        tuple(
            Use(by, (_FORWARD,), note="its replacement takes what callers pass")
            for by in (V03, V04)
        ),
    ),
    Seam(
        "llama.layer.forward",
        Kind.METHOD,
        (f"{_LLAMA}:LlamaDecoderLayer.forward",),
        tuple(Use(by, (_LAYER,), note=_EXTENSION) for by in (V03, V04)),
    ),
    Seam(
        "norm.forward",
        Kind.METHOD,
        ("vllm.model_executor.layers.layernorm:RMSNorm.forward_native",),
        tuple(Use(by, (call(positional=2),)) for by in (V03, V04, NATIVE, PATCHED)),
        note="RMSNorm.forward takes *args; this is what it passes them to",
    ),
    Seam(
        "kimi",
        Kind.CLASS,
        (_KIMI,),
        (Use(NATIVE), Use(PATCHED, optional=True), Use(PATCHES, optional=True)),
        note="came in 0.15.0; SupportsEagle3 from 0.18.0",
    ),
    *names(
        "kimi",
        _KIMI,
        Kind.ATTRIBUTE,
        "language_model",
        Use(NATIVE, note="inside/modelwalk.py"),
        Use(PATCHED, optional=True),
        Use(PATCHES, optional=True),
    ),
    Seam(
        "kimi.get_language_model",
        Kind.METHOD,
        (f"{_KIMI}.get_language_model",),
        (Use(V04, (call(),), optional=True, note=_EXTENSION), Use(PATCHES, optional=True)),
    ),
    Seam(
        "kimi.compute_logits",
        Kind.METHOD,
        (f"{_KIMI}.compute_logits",),
        (Use(NATIVE, (call(positional=1),), note="inside/worker.py"),),
    ),
)

_CACHE_WRITE = "vllm.model_executor.models.extract_hidden_states:CacheOnlyAttentionImpl"

CAPTURE = (
    Seam(
        "capture.proposer",
        Kind.MODULE,
        ("vllm.v1.spec_decode.extract_hidden_states",),
        (Use(NATIVE, note="inside/facts.py asks for the file"),),
        note="came in 0.17.0",
    ),
    Seam(
        "capture.proposer-v2",
        Kind.MODULE,
        ("vllm.v1.worker.gpu.spec_decode.extract_hidden_states",),
        (Use(NATIVE, optional=True, note="the same for model runner V2"),),
        note="came in 0.29.0",
    ),
    Seam(
        "connector",
        Kind.CLASS,
        (_STOCK,),
        (Use(NATIVE, (call(positional=3),)), Use(CONNECTORS, note="fp8 makes a subclass")),
    ),
    *(
        Seam(
            f"connector.{name}",
            Kind.METHOD,
            (f"{_STOCK}.{name}",),
            (Use(NATIVE, (call(positional=count),), note="inside/connector.py"),),
            owners=(owner,),
        )
        for name, count, owner in (
            ("_submit_async_write", 1, "ExampleHiddenStatesConnector"),
            ("request_finished", 2, "ExampleHiddenStatesConnector"),
            ("register_kv_caches", 1, "ExampleHiddenStatesConnector"),
            ("get_finished", 1, "ExampleHiddenStatesConnector"),
            # A step's beginning and end, as vLLM tells every connector of it.
            ("bind_connector_metadata", 1, "KVConnectorBase_V1"),
            ("clear_connector_metadata", 0, "KVConnectorBase_V1"),
            ("has_connector_metadata", 0, "KVConnectorBase_V1"),
        )
    ),
    *names(
        "connector",
        _STOCK,
        Kind.ATTRIBUTE,
        "_pending_saves _is_tp_rank_zero _kv_cache _block_size _req_copy_events",
        Use(NATIVE, note="inside/connector.py"),
    ),
    Seam(
        "capture.cache-write",
        Kind.METHOD,
        (f"{_CACHE_WRITE}.do_kv_cache_update",),
        (
            Use(
                NATIVE,
                (call(positional=4),),
                optional=True,
                note="inside/cachewrite.py hands it whole words, where it is there and still right",
            ),
        ),
    ),
    *names(
        "capture.cache-write",
        _CACHE_WRITE,
        Kind.ATTRIBUTE,
        "kv_cache_torch_dtype",
        Use(NATIVE, optional=True, note="inside/cachewrite.py"),
    ),
    Seam(
        "connector.pending",
        Kind.CLASS,
        (f"{_CONNECTOR}:PendingSave",),
        (Use(NATIVE, (call("req_id", "filename", "token_ids", "block_ids"),)),),
    ),
    *names(
        "connector.pending",
        f"{_CONNECTOR}:PendingSave",
        Kind.FIELD,
        "req_id filename token_ids block_ids",
        Use(NATIVE, note="inside/connector.py"),
    ),
    Seam(
        "connector.extract",
        Kind.FUNCTION,
        (f"{_CONNECTOR}:extract_from_kv_cache",),
        (Use(NATIVE, (call(positional=3),)), Use(CONNECTORS, (call(positional=3),))),
    ),
    *names(
        "connector.role",
        "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorRole",
        Kind.FIELD,
        "WORKER SCHEDULER",
        Use(NATIVE),
    ),
)

INT4 = (
    Seam(
        "int4.method",
        Kind.CLASS,
        _METHOD,
        (Use(NATIVE, (call(positional=3),), optional=True, note=_INT4),),
    ),
    Seam(
        "int4.method.create_weights",
        Kind.METHOD,
        tuple(f"{path}.create_weights" for path in _METHOD),
        (Use(NATIVE, (call(positional=5),), optional=True, note=_INT4),),
    ),
    Seam("int4.marlin", Kind.CLASS, _MARLIN, (Use(NATIVE, optional=True, note=_INT4),)),
    Seam(
        "int4.select-backend",
        Kind.FUNCTION,
        (
            f"{_WNA16}.compressed_tensors_moe_wna16:select_wna16_moe_backend",
            f"{_WNA16}:select_wna16_moe_backend",
        ),
        (Use(NATIVE, optional=True, note=_INT4),),
    ),
    Seam(
        "int4.unquantised",
        Kind.CLASS,
        _PLAIN,
        (Use(NATIVE, (call(positional=1),), paths=_PLAIN[:1], optional=True, note=_INT4),),
    ),
    Seam(
        "int4.unquantised.process",
        Kind.METHOD,
        tuple(f"{path}.process_weights_after_loading" for path in _PLAIN),
        (Use(NATIVE, (call(positional=1),), optional=True, note=_INT4),),
    ),
)

SEAMS = (*MODELS, *CAPTURE, *INT4)
