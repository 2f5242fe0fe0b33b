"""Native capture: vLLM's hidden-state cache, read back into the spool.

vLLM's ``extract_hidden_states`` method stores the captured rows in the paged KV
cache as one pseudo layer. The stock ``ExampleHiddenStatesConnector`` reads them
back with CUDA streams and pinned memory, which a CPU has not, holds a file lock a
request on the step path, and reports a request as done when its write has failed.
:class:`SpoolConnector` keeps its bookkeeping and replaces that one step: rows go
to the spool writer, keyed by the caller's key, with the write's fate reported.

Read in vLLM 0.32.0: ``example_hidden_states_connector.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as stock
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from harness.inside.cachewrite import write_in_words
from harness.inside.deaths import watch_children
from harness.inside.rowchecks import row_flags
from harness.inside.spool import SpoolTask, SpoolWriter
from harness.inside.staging import Arrival, Stage
from harness.inside.words import WORD, in_words

PARAMS = "hs"
"""Key in ``kv_transfer_params`` that holds our request parameters."""

PART_TOKENS = 2048
"""Rows that go to the host together: 117 MB at Kimi's width and four depths."""

_LOG = logging.getLogger(f"vllm.{__name__}")  # vLLM's own handler takes what is below its name

_NEEDED = ("_submit_async_write", "request_finished", "register_kv_caches", "get_finished")
_missing = [name for name in _NEEDED if not hasattr(stock.ExampleHiddenStatesConnector, name)]
if _missing or not hasattr(stock, "PendingSave"):
    raise ImportError(
        "native capture needs ExampleHiddenStatesConnector with "
        f"{', '.join(_NEEDED)} and PendingSave; this vLLM lacks {_missing or ['PendingSave']}"
    )

_KEPT = tuple(one.name for one in fields(stock.PendingSave))


@dataclass
class SpoolSave(stock.PendingSave):  # type: ignore[misc]  # vllm is untyped here
    """A pending save that carries the caller's key and column order.

    Attributes:
        prompt: The request's token ids; ``token_ids`` is None.
        key: The caller's key of the sample.
        columns: Engine columns in file order.
        probe: Engine columns of a second file ``<key>.probe``, or None for no such file.
    """

    prompt: Sequence[int] = ()
    key: str = ""
    columns: tuple[int, ...] = ()
    probe: tuple[int, ...] | None = None

    @property
    def tokens(self) -> int:
        """Rows of the sample."""
        return len(self.prompt)


class SpoolConnector(stock.ExampleHiddenStatesConnector):  # type: ignore[misc]
    """Out-of-tree connector for CPU and GPU; see the module's docstring."""

    def __init__(
        self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        config = vllm_config.kv_transfer_config
        self._spool: SpoolWriter | None = None
        self._to_report: set[str] = set()
        self._step = _Step(self._copy)
        self._stage: Stage | None = None
        self._begun: Any = None
        if role == KVConnectorRole.WORKER:
            self._spool = SpoolWriter(
                Path(config.get_from_extra_config("spool", "")),
                threads=int(config.get_from_extra_config("writer_threads", 4)),
                fsync=bool(config.get_from_extra_config("fsync", False)),
            )
        else:
            # This object lives in the process that owns the workers.
            watch_children()

    # Scheduler side

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Queue the save of a finished request, if it asked for one and ran whole."""
        params = (request.kv_transfer_params or {}).get(PARAMS)
        delay, out = super().request_finished(_WithoutPrompt(request), block_ids)
        pending = self._pending_saves.pop(request.request_id, None)
        if pending is None or params is None or not _ran_whole(request):
            return False, None
        # A tensor takes 0.1 ms to pickle and to read again, for each request, while every rank's
        # device waits: what is in it comes with `prompt`.
        kept = {name: _no_tensor(getattr(pending, name)) for name in _KEPT}
        self._pending_saves[request.request_id] = SpoolSave(
            **kept,
            prompt=request.prompt_token_ids,
            key=str(params["key"]),
            columns=tuple(params["columns"]),
            probe=None if params.get("probe") is None else tuple(params["probe"]),
        )
        return delay, out

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Take the cache; its rows are written as whole words from now on, where they can be."""
        super().register_kv_caches(kv_caches)
        names = [name for name, cache in kv_caches.items() if cache is self._kv_cache]
        layers = get_layers_from_vllm_config(self._config, torch.nn.Module, names)
        words = [
            write_in_words(layer, kv_caches[name], self._block_size)
            for name, layer in layers.items()
        ]
        how = "whole words" if any(words) else "this vLLM's own elements"
        _LOG.info("hidden states are written to the cache as %s", how)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Remember where this step begins: all rows of the steps before it are written there.

        vLLM calls it "before the model execution" in every release; ``start_load_kv`` comes behind
        the forward from 0.29 on. A step that has not ended yet may still write rows.
        """
        ended = not self.has_connector_metadata()
        super().bind_connector_metadata(connector_metadata)
        begun = ended and self._kv_cache is not None
        self._begun = self._way().now() if begun else None

    def clear_connector_metadata(self) -> None:
        """End the step; what comes without a beginning of its own waits for everything."""
        super().clear_connector_metadata()
        self._begun = None

    def _way(self) -> Stage:
        if self._stage is None:
            self._stage = Stage(self._kv_cache.device)
        return self._stage

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Report what was saved, and nothing else.

        0.26 reports every finished request; the scheduler has forgotten those that asked for
        no save or were aborted, and the engine dies of an assertion.
        """
        sent, received = super().get_finished(finished_req_ids)
        self._step.copy()
        self._begun = None
        known = (sent or set()) & self._to_report
        # From 0.32 on a rank that writes nothing reports nothing.
        self._to_report -= known | (finished_req_ids - self._req_copy_events.keys())
        return known or None, received

    def _submit_async_write(self, pending: Any) -> None:
        """Put a request with the others of its step; :class:`_Step` says when they are copied."""
        self._to_report.add(pending.req_id)  # on every rank: each is waited for
        if not self._is_tp_rank_zero or self._spool is None:
            return
        if self._step.copied:
            self._step = _Step(self._copy)
        self._step.saves.append(pending)
        # get_finished frees the blocks once this one says that the copy is done.
        self._req_copy_events[pending.req_id] = self._step

    def _copy(self, saves: Sequence[SpoolSave]) -> Arrival | None:
        """Start the copies of a step's requests; return the event behind the last one."""
        event: Arrival | None = None
        for part in parts(saves):
            event = self._copy_part(part)
        return event

    def _copy_part(self, part: Sequence[SpoolSave]) -> Arrival:
        assert self._spool is not None
        slots = torch.cat([slots_of(o.block_ids, self._block_size, o.tokens) for o in part])
        spans = list(_spans(part))
        way = self._way()
        # Not behind the forward that was just launched: copies and writers would be at work
        # between two steps, when the device waits for the host.
        with way.beside(self._begun):
            rows = read_rows(self._kv_cache, way.there(slots))
            probes = [
                None if one.probe is None else way.back(rows[span][:, list(one.probe)])
                for one, span in zip(part, spans, strict=True)
            ]
            rows = _in_order(rows, part[0].columns)
            flags = way.back(row_flags(rows)) if rows.is_cuda else None
            host = way.back(rows)
        event = way.arrival()
        for one, span, probe in zip(part, spans, probes, strict=True):
            if probe is not None:
                self._spool.submit(_task(f"{one.key}.probe", probe, one, event))
            own = None if flags is None else flags[span]
            self._spool.submit(_task(one.key, host[span], one, event, own))
        return event


class _Step:
    """The requests that one step has finished; stands where the base class keeps a device event.

    One gather, one check and one copy for many requests: a set for each would keep the step
    path launching some hundred small kernels, and the device waiting for them.
    """

    def __init__(self, copy: Callable[[Sequence[SpoolSave]], Arrival | None]) -> None:
        self._copy = copy
        self._event: Arrival | None = None
        self.saves: list[SpoolSave] = []
        self.copied = False

    def copy(self) -> None:
        """Start the copies, once."""
        if not self.copied and self.saves:
            self.copied = True
            self._event = self._copy(self.saves)
            self.saves = []

    def query(self) -> bool:
        """Say whether every row has left the cache; the first call comes when all are known."""
        self.copy()
        assert self._event is not None
        return self._event.query()


def parts(saves: Sequence[SpoolSave], most: int = PART_TOKENS) -> Iterator[list[SpoolSave]]:
    """Yield runs of requests that share their columns and have ``most`` rows or fewer, if they can.

    A request is never cut; one with more rows is a part by itself.
    """
    part: list[SpoolSave] = []
    rows = 0
    for one in saves:
        if part and (rows + one.tokens > most or one.columns != part[0].columns):
            yield part
            part, rows = [], 0
        part.append(one)
        rows += one.tokens
    if part:
        yield part


def slots_of(blocks: Sequence[int], block_size: int, tokens: int) -> torch.Tensor:
    """Return where a request's rows lie in the cache: [tokens], on the host."""
    base = torch.tensor(blocks, dtype=torch.long).unsqueeze(1) * block_size
    return (base + torch.arange(block_size)).flatten()[:tokens]


def read_rows(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Gather rows from the cache.

    Args:
        cache: The hidden-state cache in this release's own layout.
        slots: Where the rows lie, on the cache's device.

    Returns:
        A new tensor [tokens, columns, hidden] on the cache's device.
    """
    found = stock.extract_from_kv_cache(in_words(cache, WORD), slots, len(slots))
    assert isinstance(found, torch.Tensor)
    return found.view(cache.dtype)


def _spans(part: Sequence[SpoolSave]) -> Iterator[slice]:
    start = 0
    for one in part:
        yield slice(start, start + one.tokens)
        start += one.tokens


def _in_order(rows: torch.Tensor, columns: tuple[int, ...]) -> torch.Tensor:
    """Put columns into the caller's order; rows that are in it already are not copied."""
    same = columns == tuple(range(rows.shape[1]))
    return rows if same else rows[:, list(columns)]


def _task(
    key: str, rows: torch.Tensor, save: SpoolSave, event: Arrival, flags: torch.Tensor | None = None
) -> SpoolTask:
    return SpoolTask(key, rows, save.prompt, event.synchronize, flags)


class _WithoutPrompt:
    """A request whose prompt seems to be empty.

    The base class makes a tensor of it between two steps, while the device has nothing to do:
    of a list of 512 that takes 0.2 to 0.3 ms. A writer thread has the time.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self.prompt_token_ids: list[int] | None = None if request.prompt_token_ids is None else []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def _no_tensor(value: Any) -> Any:
    return None if isinstance(value, torch.Tensor) else value


def _ran_whole(request: Any) -> bool:
    """Tell whether every prompt token of a finished request was computed.

    The stock connector also saves aborted requests, whose blocks hold old rows.
    """
    prompt = request.prompt_token_ids
    aborted = "ABORTED" in request.status.name or "ERROR" in request.status.name
    return prompt is not None and not aborted and request.num_computed_tokens >= len(prompt)
