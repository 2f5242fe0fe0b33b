"""A block size that is named is forced on the attention backend."""

from __future__ import annotations

from typing import Any

from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process, Unfit
from harness.patches._state import State, broken, needed, obsolete
from harness.seams import Surface

_SEAM = "config.cache"
_FIELD = "user_specified_block_size"


def _judge(surface: Surface) -> State:
    entry = surface.entry(_SEAM)
    if entry.missing:
        return broken(f"{_SEAM} is gone; {entry.where} is what is left")
    if entry.field(_FIELD) is None:
        return obsolete("the platform changes it as it needs")
    size = entry.field("block_size")
    if size is None or size.default is None:
        return broken("CacheConfig has no block_size that can be left out")
    return needed("a named size rules backends out")


def _make(original: Any) -> Any:
    if not isinstance(original, int):
        raise Unfit(f"it is {original!r}")
    return None  # what CacheConfig takes for: nobody says


PATCH = Patch(
    id="block-size",
    process=Process.CONTROLLER,
    seam=_SEAM,
    module=GENERATOR,
    changes=(Change("VLLM_BLOCK_SIZE", _make),),
    summary="Names no block size, so that vLLM takes one that its attention backend has.",
    fault="ValueError: No common block size for 16 (CPU, without latent attention); on GPUs, "
    "attention backends with other sizes are ruled out",
    silent=False,
    judge=_judge,
    releases=">=0.18",
    retire_when="speculators' in-process generator is no longer used",
    upstream="vLLM 0.18.0, vllm/config/cache.py: user_specified_block_size",
)
