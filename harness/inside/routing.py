"""How near a router came to choosing another expert, in a reference forward.

DeepSeek-V3 routing (``noaux_tc``): each expert's sigmoid score plus a correction bias decides
the choice; with expert groups, only experts of the best groups stand for it. A group's score is
the sum of its two best experts. The gap of a token is the smaller of two margins: the last
chosen expert over the first refused, and, where groups are dropped, the last kept group over
the first dropped one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.inside.wire import OpError


class Gaps:
    """The gaps of one forward, by mixture-of-experts layer."""

    def __init__(self, layers: int) -> None:
        self._columns: list[Any] = [None] * layers

    def put(self, column: int, gap: Any) -> None:
        """Keep the gaps ``[tokens]`` of one layer; a layer answers once a forward."""
        if self._columns[column] is not None:
            raise RuntimeError(f"router {column} ran twice in one forward")
        self._columns[column] = gap

    def stack(self, tokens: int) -> Any:
        """Return float32 ``[tokens, moe_layers]``."""
        import torch

        if not self._columns:
            return torch.zeros((tokens, 0), dtype=torch.float32)
        if any(column is None or column.shape != (tokens,) for column in self._columns):
            raise RuntimeError("a router did not see every token of the forward")
        return torch.stack(self._columns, dim=1).to(torch.float32)


class RoutingGap:
    """Watches the routers of a model; nothing is attached outside :meth:`recording`."""

    def __init__(self, module: Any) -> None:
        config = module.config
        self._top_k = int(getattr(config, "num_experts_per_tok", 0) or 0)
        self._groups = int(getattr(config, "n_group", 1) or 1)
        self._kept_groups = int(getattr(config, "topk_group", 1) or 1)
        self._routers = [
            (layer, part)
            for layer, block in enumerate(module.model.layers)
            for part in block.modules()
            if hasattr(part, "e_score_correction_bias") and hasattr(part, "weight")
        ]
        if self._top_k and not self._routers and _has_experts(config):
            raise OpError(
                "reference.router",
                expected="routers with an e_score_correction_bias (DeepSeek-V3 routing)",
                found="experts, but no such router",
                where=type(module).__name__,
                next="compare with a reference of a DeepSeek-V3 architecture",
            )

    @property
    def layers(self) -> tuple[int, ...]:
        """Decoder layers that route, 0-based, ascending."""
        return tuple(layer for layer, _ in self._routers)

    @contextmanager
    def recording(self) -> Iterator[Gaps]:
        """Record the gaps of the one forward that runs inside the block."""
        gaps = Gaps(len(self._routers))
        handles = [
            router.register_forward_pre_hook(
                lambda router, args, column=column: gaps.put(column, self._gap(router, args[0]))
            )
            for column, (_, router) in enumerate(self._routers)
        ]
        try:
            yield gaps
        finally:
            for handle in handles:
                handle.remove()

    def _gap(self, router: Any, hidden: Any) -> Any:
        import torch

        rows = hidden.reshape(-1, hidden.shape[-1]).to(torch.float32)
        scores = torch.nn.functional.linear(rows, router.weight.to(torch.float32)).sigmoid()
        choice = scores + router.e_score_correction_bias.to(torch.float32)
        return selection_gap(choice, self._top_k, self._groups, self._kept_groups)


def selection_gap(choice: Any, top_k: int, groups: int, kept_groups: int) -> Any:
    """Margin by which the choice of experts was made.

    Args:
        choice: Selection scores, bias included, ``[tokens, experts]``.
        top_k: Experts chosen a token.
        groups: Expert groups; 1 for none.
        kept_groups: Groups that stand for the choice.

    Returns:
        Gaps ``[tokens]``, >= 0; infinite where nothing could be refused.
    """
    import torch

    tokens, experts = choice.shape
    margin = torch.full((tokens,), torch.inf, dtype=choice.dtype)
    if groups > 1 and kept_groups < groups:
        grouped = choice.view(tokens, groups, experts // groups)
        ranked, order = grouped.topk(2, dim=-1).values.sum(-1).sort(dim=-1, descending=True)
        margin = ranked[:, kept_groups - 1] - ranked[:, kept_groups]
        dropped = torch.zeros_like(ranked, dtype=torch.bool)
        dropped.scatter_(1, order[:, kept_groups:], True)
        choice = grouped.masked_fill(dropped[..., None], -torch.inf).view(tokens, experts)
    if top_k < experts:
        best = choice.topk(top_k + 1, dim=-1).values
        margin = torch.minimum(margin, best[:, top_k - 1] - best[:, top_k])
    return margin


def _has_experts(config: Any) -> bool:
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    return any(getattr(config, name, None) for name in names)
