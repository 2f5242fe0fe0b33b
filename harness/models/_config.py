"""``config.json`` of a made model, in both architectures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from harness.models._int4 import GROUP_SIZE
from harness.models._kimi import KimiShape

WRAPPER_ARCHITECTURE = "KimiK25ForConditionalGeneration"
PLAIN_ARCHITECTURE = "DeepseekV3ForCausalLM"

IMAGE_PROCESSOR_FILE = "tiny_kimi_image_processor.py"
IMAGE_PROCESSOR_CLASS = "TinyKimiImageProcessor"
CONFIG_FILE = "tiny_kimi_config.py"
CONFIG_CLASS = "TinyKimiConfig"


def plain_config(shape: KimiShape, *, dtype: str, int4: bool) -> dict[str, Any]:
    """Return the text model's configuration, as ``DeepseekV3ForCausalLM`` reads it.

    Args:
        shape: Sizes.
        dtype: ``float32`` or ``bfloat16``.
        int4: Whether the routed experts are packed INT4.
    """
    config: dict[str, Any] = {
        "architectures": [PLAIN_ARCHITECTURE],
        "model_type": "deepseek_v3",
        "dtype": dtype,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "aux_loss_alpha": 0.001,
        "bos_token_id": shape.special_id("[BOS]"),
        "eos_token_id": shape.special_id("[EOS]"),
        "pad_token_id": shape.special_id("[PAD]"),
        "ep_size": 1,
        "first_k_dense_replace": shape.first_k_dense_replace,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "kv_lora_rank": shape.kv_lora_rank,
        "max_position_embeddings": shape.max_position_embeddings,
        "moe_intermediate_size": shape.moe_intermediate_size,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": shape.n_routed_experts,
        "n_shared_experts": shape.n_shared_experts,
        "norm_topk_prob": True,
        "num_attention_heads": shape.num_attention_heads,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_attention_heads,
        "num_nextn_predict_layers": 0,
        "pretraining_tp": 1,
        "q_lora_rank": shape.q_lora_rank,
        "qk_nope_head_dim": shape.qk_nope_head_dim,
        "qk_rope_head_dim": shape.qk_rope_head_dim,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": {"type": "yarn", **asdict(shape.yarn)},
        "rope_theta": shape.rope_theta,
        "routed_scaling_factor": shape.routed_scaling_factor,
        "scoring_func": "sigmoid",
        "seq_aux": True,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "v_head_dim": shape.v_head_dim,
        "vocab_size": shape.vocab_size,
    }
    if int4:
        config["quantization_config"] = quantization_config()
    return config


def wrapper_config(shape: KimiShape, *, dtype: str, int4: bool) -> dict[str, Any]:
    """Return the configuration of ``KimiK25ForConditionalGeneration``, text model nested.

    The vision keys are written in both schemas: the released checkpoint's own (``vt_...``,
    ``init_pos_emb_...``, ``mm_...``) and transformers' (``hidden_size``, ``pos_emb_...``);
    a reader of one ignores the other.

    Args:
        shape: Sizes.
        dtype: ``float32`` or ``bfloat16``.
        int4: Whether the routed experts are packed INT4.
    """
    vision, grid = shape.vision, shape.vision.position_grid
    return {
        "architectures": [WRAPPER_ARCHITECTURE],
        "model_type": "kimi_k25",
        "auto_map": {"AutoConfig": f"{CONFIG_FILE.removesuffix('.py')}.{CONFIG_CLASS}"},
        "dtype": dtype,
        "bos_token_id": shape.special_id("[BOS]"),
        "eos_token_id": shape.special_id("[EOS]"),
        "pad_token_id": shape.special_id("[PAD]"),
        "ignore_index": -100,
        "media_placeholder_token_id": shape.media_placeholder_id,
        "image_token_id": shape.media_placeholder_id,
        "vision_start_token_id": shape.special_id("<|media_begin|>"),
        "vision_end_token_id": shape.special_id("<|media_end|>"),
        "tie_word_embeddings": False,
        "use_unified_vision_chunk": True,
        "video_placeholder": "<|kimi_k25_video_placeholder|>",
        "projection_hidden_size": vision.hidden_size,
        "text_config": plain_config(shape, dtype=dtype, int4=int4),
        "vision_config": {
            "init_pos_emb_height": grid,
            "init_pos_emb_width": grid,
            "init_pos_emb_time": 4,
            "pos_emb_height": grid,
            "pos_emb_width": grid,
            "pos_emb_time": 4,
            "pos_emb_type": "divided_fixed",
            "merge_kernel_size": [vision.merge_kernel, vision.merge_kernel],
            "merge_type": "sd2_tpool",
            "mm_hidden_size": vision.hidden_size,
            "mm_projector_type": "patchmerger",
            "patch_size": vision.patch_size,
            "projector_hidden_act": "gelu",
            "projector_ln_eps": 1e-5,
            "text_hidden_size": shape.hidden_size,
            "video_attn_type": "spatial_temporal",
            "vt_hidden_size": vision.hidden_size,
            "vt_intermediate_size": vision.intermediate_size,
            "vt_num_attention_heads": vision.num_heads,
            "vt_num_hidden_layers": vision.num_layers,
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.intermediate_size,
            "num_attention_heads": vision.num_heads,
            "num_hidden_layers": vision.num_layers,
        },
    }


def quantization_config() -> dict[str, Any]:
    """Return Kimi-K2.5's compressed-tensors block: INT4, group 32, routed experts only."""
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "input_activations": None,
                "output_activations": None,
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": GROUP_SIZE,
                    "actorder": None,
                    "block_structure": None,
                    "dynamic": False,
                    "observer": "minmax",
                    "observer_kwargs": {},
                },
            }
        },
    }
