"""Every patch, in the order in which its fault is met on vLLM 0.16.0."""

from __future__ import annotations

from collections.abc import Iterable

from harness.errors import Refused, UsageError
from harness.patches import speculators_import
from harness.patches._patch import Patch
from harness.patches.controller import (
    all_chunks,
    async_scheduling,
    block_size,
    device_memory,
    half_precision,
    kv_config_call,
    kv_layout,
    kv_planning,
    last_step,
    layer_order,
    prefix_reuse,
    request_arguments,
    scheduler_block_size,
    scheduler_config,
    single_reply,
    tokenizer_code,
    two_phase,
    warm_up,
)
from harness.patches.worker import (
    eagle3_check,
    host_copy,
    model_forward,
    model_walk,
    rows_by_request,
)

PATCHES: tuple[Patch, ...] = (
    speculators_import.PATCH,
    kv_planning.PATCH,
    tokenizer_code.PATCH,
    half_precision.PATCH,
    scheduler_config.PATCH,
    block_size.PATCH,
    kv_layout.PATCH,
    eagle3_check.PATCH,
    model_walk.PATCH,
    device_memory.PATCH,
    kv_config_call.PATCH,
    scheduler_block_size.PATCH,
    warm_up.PATCH,
    model_forward.PATCH,
    request_arguments.PATCH,
    prefix_reuse.PATCH,
    single_reply.PATCH,
    two_phase.PATCH,
    async_scheduling.PATCH,
    all_chunks.PATCH,
    rows_by_request.PATCH,
    layer_order.PATCH,
    last_step.PATCH,
    host_copy.PATCH,
)


def by_id(id: str) -> Patch:
    """Return a patch.

    Raises:
        UsageError: ``patches.unknown``.
    """
    found = next((patch for patch in PATCHES if patch.id == id), None)
    if found is None:
        raise UsageError(
            "patches.unknown",
            expected=f"one of {', '.join(patch.id for patch in PATCHES)}",
            found=id,
            where="the id of a patch",
            next="harness patches list",
        )
    return found


def check_conflicts(patches: Iterable[Patch] = PATCHES) -> None:
    """Make sure that no two patches replace one name.

    Raises:
        Refused: ``patches.conflict``, with both ids.
    """
    owners: dict[str, str] = {}
    for patch in patches:
        for target in patch.targets:
            for other, owner in owners.items():
                same = target == other or other.startswith(f"{target}.")
                if same or target.startswith(f"{other}."):
                    raise Refused(
                        "patches.conflict",
                        expected=f"one patch for {target}",
                        found=f"{patch.id} and {owner}",
                        where=target,
                        next=f"leave one of {patch.id} and {owner} out",
                    )
        owners |= dict.fromkeys(patch.targets, patch.id)
