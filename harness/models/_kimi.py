"""What is known about Kimi-K2.5, and the profiles that stand in for it.

Sources. Configuration, tensor names, shapes and dtypes: the released checkpoint
``moonshotai/Kimi-K2.5`` as dumped in public (its ``config.json`` after transformers 5.7 read
it, and a table of all 208,550 tensors in 64 shards, 554.27 GiB). Special token ids: the
``tokenizer_config.json`` of the same family, ids 163584 and up. The layout of the experts:
compressed-tensors ``pack-quantized``, group 32, routed experts only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True)
class Yarn:
    """Yarn rotary scaling, by the names that ``config.json`` uses."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0


@dataclass(frozen=True)
class VisionShape:
    """The vision tower and its projector, by size."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_layers: int
    position_grid: int
    patch_size: int = 14
    merge_kernel: int = 2


@dataclass(frozen=True)
class KimiShape:
    """One member of the Kimi-K2.5 family: every size that decides a tensor's shape.

    Attributes are named as in the ``text_config`` of ``config.json``.
    """

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    vocab_size: int
    num_attention_heads: int
    q_lora_rank: int
    n_routed_experts: int
    num_experts_per_tok: int
    max_position_embeddings: int
    yarn: Yarn
    vision: VisionShape
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    n_shared_experts: int = 1
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 2.827
    rms_norm_eps: float = 1e-5
    rope_theta: float = 50000.0

    @property
    def special_tokens_start(self) -> int:
        """First special token id: the last 256 ids of the vocabulary are special."""
        return self.vocab_size - SPECIAL_TOKENS

    def special_id(self, token: str) -> int:
        """Return the id of one of :data:`SPECIAL_OFFSETS`' tokens in this vocabulary."""
        return self.special_tokens_start + SPECIAL_OFFSETS[token]

    @property
    def media_placeholder_id(self) -> int:
        """Id of ``<|media_pad|>``, which stands for image patches and must not be in a prompt."""
        return self.special_id(MEDIA_PAD)


SPECIAL_TOKENS = 256
"""How many ids at the end of Kimi's vocabulary are special tokens (163584 to 163839)."""

MEDIA_PAD = "<|media_pad|>"

SPECIAL_OFFSETS = MappingProxyType(
    {
        "[BOS]": 0,
        "[EOS]": 1,
        "<|im_end|>": 2,
        "<|im_user|>": 3,
        "<|im_assistant|>": 4,
        "<|im_system|>": 10,
        "<|im_middle|>": 17,
        "<|media_begin|>": 18,
        "<|media_content|>": 19,
        "<|media_end|>": 20,
        MEDIA_PAD: 21,
        "[UNK]": 254,
        "[PAD]": 255,
    }
)
"""Kimi's special tokens as offsets from the first special id; the others are reserved."""

KIMI_K25 = KimiShape(
    num_hidden_layers=61,
    hidden_size=7168,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    vocab_size=163840,
    num_attention_heads=64,
    q_lora_rank=1536,
    n_routed_experts=384,
    num_experts_per_tok=8,
    max_position_embeddings=262144,
    yarn=Yarn(factor=64.0, original_max_position_embeddings=4096),
    vision=VisionShape(
        hidden_size=1152, intermediate_size=4304, num_heads=16, num_layers=27, position_grid=64
    ),
)
"""Kimi-K2.5 as released."""

KIMI_K25_TINY = KimiShape(
    num_hidden_layers=6,
    hidden_size=128,
    intermediate_size=256,
    moe_intermediate_size=256,
    vocab_size=512,
    num_attention_heads=8,
    q_lora_rank=64,
    rms_norm_eps=1e-6,
    n_routed_experts=8,
    num_experts_per_tok=2,
    max_position_embeddings=8192,
    yarn=Yarn(factor=64.0, original_max_position_embeddings=128),
    vision=VisionShape(
        hidden_size=64, intermediate_size=128, num_heads=2, num_layers=2, position_grid=8
    ),
)
"""The same walk at a size that a laptop runs: real MLA head sizes, all widths divisible by 8.

The byte vocabulary (256) and the specials (256) keep Kimi's arrangement, so a special id of
the tiny model is Kimi's minus 163328. The norms' epsilon is 1e-6, not Kimi's 1e-5: inside MLA
transformers always takes 1e-6 where vLLM takes the configured one, and at 1e-5 the two differ
by 1e-5 of the attention's output, which would drown what float32 can show.
"""


@dataclass(frozen=True)
class Profile:
    """A model the harness knows by name.

    Attributes:
        name: What the user types.
        shape: Its sizes.
        makes: ``checkpoint`` (config, tokenizer, weights), ``config`` (no weights: they are
            made at load) or ``nothing`` (facts only).
        experts: Form of the experts when the user does not say.
        dtype: dtype when the user does not say.
    """

    name: str
    shape: KimiShape
    makes: str
    experts: str
    dtype: str


PROFILES = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            Profile("kimi-k2.5", KIMI_K25, "nothing", "int4", "bfloat16"),
            Profile(
                "kimi-k2.5-slice",
                replace(KIMI_K25, num_hidden_layers=6),
                "config",
                "int4",
                "bfloat16",
            ),
            Profile("kimi-k2.5-tiny", KIMI_K25_TINY, "checkpoint", "dense", "float32"),
        )
    }
)
"""All profiles by name."""
