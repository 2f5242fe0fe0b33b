"""The paged cache: attention's latents and, with native capture, the hidden states.

Native capture keeps each token's captured rows in the KV cache, as one pseudo layer whose heads
are the captured depths. Its rows are as wide as the residual stream on every rank, so tensor
parallelism makes neither them nor the latents smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.estimate._sharding import ShardCheck
from harness.models import KimiShape

BLOCK = 16
"""Tokens of a block where nobody asks for another size (measured: H200, FLASH_ATTN_MLA)."""


@dataclass(frozen=True)
class CachePages:
    """What a token and a block take in the cache of one rank.

    Attributes:
        layers: Decoder layers with a latent cache.
        latent_token: Bytes of one token's latent in one layer.
        hidden_token: Bytes of one token's captured rows; 0 without native capture.
        block: Tokens of a block.
    """

    layers: int
    latent_token: int
    hidden_token: int
    block: int = BLOCK

    @property
    def token(self) -> int:
        """Bytes of one token over all layers.

        Latents and rows are specs of one type with one block size, so each keeps its own page
        and nothing is padded: 57,344 + 6,912 bytes a token measured with 6 layers on an H200,
        where the capacity fell from 10,050,064 to 1,075,600 tokens (0.26); 0.32's own grouping
        of Kimi's 61 layers says the same (``tests/engine/test_estimate_pages.py``).
        """
        return self.layers * self.latent_token + self.hidden_token

    @property
    def latent_page(self) -> int:
        """Bytes of a block in one layer's latent cache."""
        return self.block * self.latent_token

    @property
    def hidden_page(self) -> int:
        """Bytes of a block in the hidden-state cache, pages unpadded."""
        return self.block * self.hidden_token

    @property
    def parted_token(self) -> int:
        """Bytes of one token's rows where the cache's groups are parted and share a page size.

        The page then grows by whole latent pages until it holds one token's rows, and each
        block holds as many tokens as fit (0.32's ``_ensure_min_page_size``; releases before it
        fail with an assertion, vllm-project/vllm#51016).
        """
        if not self.hidden_token:
            return 0
        scale = max(1, -(-self.hidden_token // self.latent_page))
        page, block = self.latent_page * scale, self.block * scale
        tokens = max(1, page // self.hidden_token)
        while block % tokens:
            tokens -= 1
        return page // tokens

    def tokens(self, pool: int) -> int:
        """Return how many tokens fit into so many bytes, in whole blocks."""
        return max(0, pool // (self.block * self.token)) * self.block

    def bytes(self, tokens: int) -> int:
        """Return the bytes of so many tokens of one request, in whole blocks."""
        return -(-tokens // self.block) * self.block * self.token

    def check(self) -> ShardCheck:
        """Hold the page against one token's rows."""
        if self.hidden_token <= self.latent_page:
            found = f"{self.hidden_token:,} B a token in a page of {self.latent_page:,} B"
            return ShardCheck("page.hidden-state", "ok", found)
        found = (
            f"{self.hidden_token:,} B a token over a latent page of {self.latent_page:,} B: right "
            f"while both lie in one group (0.26 and 0.32 do); parted, {self.parted_token:,} B"
        )
        return ShardCheck("page.hidden-state", "note", found)


def cache_pages(shape: KimiShape, *, columns: int, width: int, block: int = BLOCK) -> CachePages:
    """Return the cache's sizes.

    Args:
        shape: Sizes of the model.
        columns: Depths that the engine captures in its cache; 0 without native capture.
        width: Bytes of a value.
        block: Tokens of a block.
    """
    latent = (shape.kv_lora_rank + shape.qk_rope_head_dim) * width
    return CachePages(shape.num_hidden_layers, latent, columns * shape.hidden_size * width, block)
