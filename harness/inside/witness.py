"""An independent witness of the stream: forward hooks on the decoder layers.

It shares nothing with a capture's bookkeeping. Rows are named by what the forward
itself was given, the token id and the position, so with prompts that never put
the same token at the same position, each row has one owner, whatever the order of
the batch, the chunks or the request ids.

Depth k is ``hidden_states + residual`` on entering decoder layer k; depth L is the
same sum on entering the final norm. Beside a capture that reads there itself the witness
takes the other side: what leaves layer k - 1, and for depth 0 the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.inside.arguments import NORM, Names, stream_of
from harness.inside.modelwalk import embedding, text_decoder

Key = tuple[int, int]
"""(token id, position)."""


class Witness:
    """Records rows while armed; see the module's docstring."""

    def __init__(self, model: Any, depths: Sequence[int], *, leaving: bool = False) -> None:
        self._leaving = leaving
        self._decoder = text_decoder(model)
        self._depths = sorted(set(depths))
        self._layers = len(self._decoder.layers)
        self._ids: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None
        self._handles: list[Any] = []
        self.rows: dict[int, dict[Key, torch.Tensor]] = {depth: {} for depth in self._depths}

    def arm(self) -> None:
        """Register the hooks; idempotent."""
        if self._handles:
            return
        hook = self._handles.append
        hook(embedding(self._decoder).register_forward_pre_hook(self._see_ids, with_kwargs=True))
        for depth in self._depths:
            hook(self._leave(depth) if self._leaving else self._enter(depth))
        if 0 not in self._depths or self._leaving:
            first = self._decoder.layers[0]
            see = self._see_positions(Names(first))
            hook(first.register_forward_pre_hook(see, with_kwargs=True, prepend=True))

    def _enter(self, depth: int) -> Any:
        last = depth == self._layers
        module = self._decoder.norm if last else self._decoder.layers[depth]
        see = self._see_rows(depth, NORM if last else Names(module))
        return module.register_forward_pre_hook(see, with_kwargs=True)

    def _leave(self, depth: int) -> Any:
        if depth == 0:
            first = self._decoder.layers[0]
            see = self._see_rows(0, Names(first))
            return first.register_forward_pre_hook(see, with_kwargs=True)
        return self._decoder.layers[depth - 1].register_forward_hook(self._see_left(depth))

    def disarm(self) -> None:
        """Remove the hooks and forget the rows."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.rows = {depth: {} for depth in self._depths}

    def _see_ids(self, module: Any, args: Any, kwargs: Any) -> None:
        ids = args[0] if args else next(iter(kwargs.values()))
        self._ids = ids.detach().flatten().cpu().clone()

    def _see_positions(self, names: Names) -> Callable[..., None]:
        def see(module: Any, args: Any, kwargs: Any) -> None:
            self._positions = names.of(args, kwargs)["positions"].detach().cpu().clone()

        return see

    def _see_rows(self, depth: int, names: Names) -> Callable[..., None]:
        def see(module: Any, args: Any, kwargs: Any) -> None:
            given = names.of(args, kwargs)
            if "positions" in given:
                self._positions = given["positions"].detach().cpu().clone()
            self._keep(depth, stream_of(given).detach().cpu().clone())

        return see

    def _see_left(self, depth: int) -> Callable[..., None]:
        def see(module: Any, args: Any, left: Any) -> None:
            hidden, residual = left
            self._keep(depth, (hidden + residual).detach().cpu().clone())

        return see

    def _keep(self, depth: int, stream: torch.Tensor) -> None:
        if self._ids is None or self._positions is None:
            return
        count = min(len(stream), len(self._ids), self._positions.shape[-1])
        ids, positions = self._ids[:count].tolist(), self._positions[..., :count].flatten().tolist()
        store = self.rows[depth]
        for row, key in enumerate(zip(ids, positions, strict=False)):
            store[key] = stream[row]


def compare(
    witness: Witness, rows: torch.Tensor, token_ids: Sequence[int], depths: Sequence[int]
) -> list[dict[str, Any]]:
    """Compare captured rows with what the witness saw.

    Args:
        witness: An armed witness after the forward passes.
        rows: Captured rows [tokens, columns, hidden] on the CPU.
        token_ids: The prompt, in order.
        depths: The depth that each column must be.

    Returns:
        One entry a column: ``depth``, ``rows``, ``unseen`` (rows the witness never
        saw), ``wrong`` (rows that differ by more than the dtype's rounding),
        ``max_rel_err``, ``looks_like`` (another recorded depth that a wrong column equals),
        ``written`` (rows in the file; where that is another number, nothing else is compared).
    """
    report = []
    if len(rows) != len(token_ids):
        whole = {"unseen": 0, "wrong": 0, "max_rel_err": 0.0, "looks_like": None}
        sizes = {"rows": len(token_ids), "written": len(rows)}
        return [{"depth": depth, **sizes, **whole} for depth in depths]
    for column, depth in enumerate(depths):
        store = witness.rows.get(depth, {})
        truth = [store.get((token, position)) for position, token in enumerate(token_ids)]
        seen = [row for row, value in enumerate(truth) if value is not None]
        entry: dict[str, Any] = {
            "depth": depth,
            "rows": len(token_ids),
            "written": len(rows),
            "unseen": len(token_ids) - len(seen),
            "wrong": 0,
            "max_rel_err": 0.0,
            "looks_like": None,
        }
        if seen:
            want = torch.stack([truth[row] for row in seen if truth[row] is not None]).float()
            have = rows[seen, column].float()
            error = (have - want).norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-30)
            # A capture copies; it has no arithmetic of its own beyond one addition.
            wrong = ~(error <= (1e-6 if rows.dtype == torch.float32 else 1e-2))
            entry["wrong"] = int(wrong.sum())
            # The wire carries no infinity.
            entry["max_rel_err"] = float(error.nan_to_num(nan=1e30, posinf=1e30).max())
            if entry["wrong"]:
                entry["looks_like"] = _nearest(witness, rows[:, column], token_ids, depth)
        report.append(entry)
    return report


def _nearest(
    witness: Witness, column: torch.Tensor, token_ids: Sequence[int], but: int
) -> int | None:
    """Name the recorded depth whose first rows a wrong column equals, if any."""
    for depth, store in witness.rows.items():
        keys = list(enumerate(token_ids))[:8]
        truth = [store.get((token, position)) for position, token in keys]
        if depth == but or any(value is None for value in truth):
            continue
        want = torch.stack([value for value in truth if value is not None]).float()
        if torch.allclose(column[: len(want)].float(), want, rtol=1e-3, atol=1e-5):
            return depth
    return None
