"""Patched capture: forward pre-hooks in the worker, under the ordinary ``LLM``.

It needs nothing of the release but its V1 model runner: ``execute_model(scheduler_output)``,
the order of ``input_batch`` and the requests' own table (the same from 0.11 to 0.32). No
forward is rebuilt and no tensor travels through vLLM's channels: the worker of rank 0 hands
each request's rows to the spool writer as soon as its last row is there.

Rows are keyed by request. The batch's order is read at forward time, since a runner may
reorder what the scheduler sent; the token ids and positions that the forward was given travel
with the rows, and the writer refuses a sample whose rows are not those of its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.inside.arguments import NORM, Names, stream_of
from harness.inside.modelwalk import embedding, text_decoder
from harness.inside.rowchecks import flags_wide, row_flags
from harness.inside.spool import SpoolTask, SpoolWriter
from harness.inside.staging import Stage

PARAMS = "hs"
"""Key in ``SamplingParams.extra_args`` that holds our request parameters."""

_V1 = "vllm.v1.worker.gpu_model_runner"


class CaptureError(RuntimeError):
    """The capture's picture of the batch does not hold; the step must not go on."""


@dataclass(frozen=True)
class Span:
    """Where one request's rows lie in a step.

    Attributes:
        request: The engine's id of the request.
        start: Position of its first row.
        count: Rows.
        offset: Index of its first row in the flat batch.
    """

    request: str
    start: int
    count: int
    offset: int


@dataclass
class _Partial:
    """A request whose rows are still coming."""

    key: str
    probe: bool
    prompt: list[int]
    rows: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor
    flags: torch.Tensor | None
    filled: int = 0


class PatchedCapture:
    """Rows of every captured request of one worker.

    Args:
        runner: The worker's V1 model runner.
        depths: Depth of each file column, in file order.
        final: Depth L, kept for the canary also where no column asks for it.
        spool: Takes each complete request.
    """

    def __init__(
        self, runner: Any, depths: Sequence[int], final: int, spool: SpoolWriter | None
    ) -> None:
        require_v1(runner)
        self._runner = runner
        self._columns = len(depths)
        self._probe = list(depths).index(final) if final in depths else len(depths)
        self._depths = [*depths, *([] if final in depths else [final])]
        self._spool = spool
        self._decoder = text_decoder(runner.model)
        self._stage = Stage(next(self._decoder.parameters()).device)
        self._partial: dict[str, _Partial] = {}
        self._done: set[str] = set()
        self.paused = False
        self._step: Any = None
        self._ids: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None
        self._streams: dict[int, torch.Tensor] = {}
        self._handles: list[Any] = []
        self._execute = runner.execute_model
        if spool is not None:
            self._hook()
            runner.execute_model = self._run

    @property
    def depths(self) -> list[int]:
        """The depths that are captured, in staging order."""
        return list(self._depths)

    def held(self) -> dict[str, int]:
        """Count what is kept: requests whose rows are still coming, and finished ones."""
        return {"partial": len(self._partial), "done": len(self._done)}

    def remove(self) -> None:
        """Take every hook away and restore the runner."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._runner.__dict__.pop("execute_model", None)
        self._partial.clear()
        self._done.clear()

    def _hook(self) -> None:
        decoder, layers = self._decoder, len(self._decoder.layers)
        keep = self._handles.append
        keep(embedding(decoder).register_forward_pre_hook(self._see_ids, with_kwargs=True))
        first = Names(decoder.layers[0])

        def see_positions(module: Any, args: Any, kwargs: Any) -> None:
            if self._step is not None:
                self._positions = first.of(args, kwargs)["positions"].flatten().clone()

        keep(decoder.layers[0].register_forward_pre_hook(see_positions, with_kwargs=True))
        for depth in self._depths:
            if depth == layers:
                continue
            layer = decoder.layers[depth]
            keep(layer.register_forward_pre_hook(self._at(depth, Names(layer)), with_kwargs=True))
        keep(decoder.norm.register_forward_pre_hook(self._at_norm(layers), with_kwargs=True))

    def _see_ids(self, module: Any, args: Any, kwargs: Any) -> None:
        if self._step is not None:
            ids = args[0] if args else next(iter(kwargs.values()))
            # The runner reuses its buffers; the next step must not overwrite these.
            self._ids = ids.flatten().clone()

    def _at(self, depth: int, names: Names) -> Any:
        def see(module: Any, args: Any, kwargs: Any) -> None:
            if self._step is not None:
                self._streams[depth] = stream_of(names.of(args, kwargs))

        return see

    def _at_norm(self, depth: int) -> Any:
        def see(module: Any, args: Any, kwargs: Any) -> None:
            # The canary runs rows through this norm as well: no step is open then.
            if self._step is None:
                return
            if depth in self._depths:
                self._streams[depth] = stream_of(NORM.of(args, kwargs))
            self._keep()

        return see

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self.paused:
            return self._execute(*args, **kwargs)
        step = args[0] if args else kwargs["scheduler_output"]
        for request in step.finished_req_ids:
            # Complete requests have left already; what is left here was aborted.
            self._partial.pop(request, None)
            self._done.discard(request)
        self._step, self._ids, self._positions, self._streams = step, None, None, {}
        try:
            return self._execute(*args, **kwargs)
        finally:
            self._step, self._ids, self._positions, self._streams = None, None, None, {}

    def _keep(self) -> None:
        """Copy each captured request's rows of this forward; hand on what is complete."""
        step, streams = self._step, self._streams
        spans = spans_of(self._runner.input_batch, step)
        total = sum(span.count for span in spans)
        ids, positions = self._ids, self._positions
        missing = [depth for depth in self._depths if depth not in streams]
        if ids is None or positions is None or missing:
            raise CaptureError(
                f"a forward pass without token ids, positions or depths {missing}: "
                "this release calls the decoder in another way"
            )
        least = min(len(ids), len(positions), *(len(s) for s in streams.values()))
        if least < total:
            raise CaptureError(f"{total} rows were scheduled, {least} went through the decoder")
        columns = [streams[depth] for depth in self._depths]
        wanted = [(span, p) for span in spans if (p := self._of(span, columns[0])) is not None]
        if not wanted:
            return
        with self._stage.copying(columns, total, ids, positions) as copy:
            flags = None if copy.block is None else row_flags(copy.block[:, : self._columns])
            for span, partial in wanted:
                here = slice(span.offset, span.offset + span.count)
                there = slice(span.start, span.start + span.count)
                copy.rows(partial.rows[there], here)
                copy.one(partial.ids[there], ids[here])
                copy.one(partial.positions[there], positions[here])
                if partial.flags is not None and flags is not None:
                    copy.one(partial.flags[there], flags[here])
                partial.filled = there.stop
        for span, partial in wanted:
            if partial.filled == len(partial.prompt):
                del self._partial[span.request]
                self._done.add(span.request)
                self._submit(partial)

    def _of(self, span: Span, stream: torch.Tensor) -> _Partial | None:
        """Return the request's buffers; None where these rows are not to be captured."""
        if span.request in self._done:
            return None
        partial = self._partial.get(span.request)
        if partial is None:
            partial = self._begin(span.request, stream)
            if partial is None:
                return None
            self._partial[span.request] = partial
        if span.start == 0:
            partial.filled = 0  # begun, or computed again after a preemption
        if span.start != partial.filled or span.start + span.count > len(partial.prompt):
            raise CaptureError(
                f"sample {partial.key}: rows {partial.filled} up to {len(partial.prompt)} are "
                f"missing, this step computes {span.count} from {span.start}"
            )
        return partial

    def _begin(self, request: str, stream: torch.Tensor) -> _Partial | None:
        state = self._runner.requests[request]
        extra = getattr(state.sampling_params, "extra_args", None) or {}
        params = extra.get(PARAMS)
        if params is None or state.prompt_token_ids is None:
            return None
        prompt = list(state.prompt_token_ids)
        empty = self._stage.empty
        return _Partial(
            key=str(params["key"]),
            probe=bool(params.get("probe")),
            prompt=prompt,
            rows=empty((len(prompt), len(self._depths), stream.shape[-1]), stream.dtype),
            ids=empty((len(prompt),), torch.int64),
            positions=empty((len(prompt),), torch.int64),
            flags=empty((len(prompt), flags_wide(self._columns)), torch.uint8)
            if self._stage.on_device
            else None,
        )

    def _submit(self, partial: _Partial) -> None:
        assert self._spool is not None
        arrived = self._stage.arrival()

        def wait() -> None:
            arrived.synchronize()
            require_own_rows(partial.key, partial.prompt, partial.ids, partial.positions)

        if partial.probe:
            rows = partial.rows[:, self._probe : self._probe + 1]
            self._spool.submit(SpoolTask(f"{partial.key}.probe", rows, partial.prompt, wait))
        rows = partial.rows[:, : self._columns]
        self._spool.submit(SpoolTask(partial.key, rows, partial.prompt, wait, partial.flags))


def spans_of(batch: Any, step: Any) -> list[Span]:
    """Say which flat rows belong to which request, in the order that the forward sees.

    Args:
        batch: The runner's ``input_batch`` during the forward pass.
        step: The scheduler's output; its own order may be another.
    """
    spans, offset = [], 0
    for index, request in enumerate(batch.req_ids[: batch.num_reqs]):
        count = int(step.num_scheduled_tokens[request])
        start = int(batch.num_computed_tokens_cpu[index])
        spans.append(Span(request, start, count, offset))
        offset += count
    return spans


def require_own_rows(
    key: str, prompt: Sequence[int], ids: torch.Tensor, positions: torch.Tensor
) -> None:
    """Hold the rows to the prompt: the ids and positions that the forward was given.

    Raises:
        CaptureError: A row belongs to another token or place.
    """
    wrong = (ids != torch.from_numpy(np.asarray(prompt, dtype=np.int64))).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise CaptureError(
            f"sample {key}: row {row} was computed from token {int(ids[row])}, not {prompt[row]}"
        )
    wrong = (positions != torch.arange(len(prompt))).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise CaptureError(
            f"sample {key}: row {row} was computed at position {int(positions[row])}"
        )


def require_v1(runner: Any) -> None:
    """Refuse a runner whose batch this module does not know.

    Raises:
        CaptureError: It is not vLLM's V1 runner, or it schedules asynchronously: then a
            step's rows are read while the next one writes.
    """
    if not any(cls.__module__ == _V1 for cls in type(runner).__mro__):
        raise CaptureError(f"{type(runner).__module__} is not {_V1}")
    if getattr(runner, "use_async_scheduling", False):
        raise CaptureError("the worker schedules asynchronously")
