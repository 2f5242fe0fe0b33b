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

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as stock
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from harness.inside.deaths import watch_children
from harness.inside.rowchecks import row_flags
from harness.inside.spool import SpoolTask, SpoolWriter

PARAMS = "hs"
"""Key in ``kv_transfer_params`` that holds our request parameters."""

_NEEDED = ("_submit_async_write", "request_finished", "register_kv_caches", "get_finished")
_missing = [name for name in _NEEDED if not hasattr(stock.ExampleHiddenStatesConnector, name)]
if _missing or not hasattr(stock, "PendingSave"):
    raise ImportError(
        "native capture needs ExampleHiddenStatesConnector with "
        f"{', '.join(_NEEDED)} and PendingSave; this vLLM lacks {_missing or ['PendingSave']}"
    )


@dataclass
class SpoolSave(stock.PendingSave):  # type: ignore[misc]  # vllm is untyped here
    """A pending save that carries the caller's key and column order.

    Attributes:
        key: The caller's key of the sample.
        columns: Engine columns in file order.
        probe: Engine columns of a second file ``<key>.probe``, or None for no such file.
    """

    key: str = ""
    columns: tuple[int, ...] = ()
    probe: tuple[int, ...] | None = None


class SpoolConnector(stock.ExampleHiddenStatesConnector):  # type: ignore[misc]
    """Out-of-tree connector for CPU and GPU; see the module's docstring."""

    def __init__(
        self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = vllm_config.kv_transfer_config
        self._spool: SpoolWriter | None = None
        self._to_report: set[str] = set()
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
        delay, out = super().request_finished(request, block_ids)
        pending = self._pending_saves.pop(request.request_id, None)
        if pending is None or params is None or not _ran_whole(request):
            return False, None
        kept = {f.name: getattr(pending, f.name) for f in fields(stock.PendingSave)}
        self._pending_saves[request.request_id] = SpoolSave(
            **kept,
            key=str(params["key"]),
            columns=tuple(params["columns"]),
            probe=None if params.get("probe") is None else tuple(params["probe"]),
        )
        return delay, out

    # Worker side

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Report what was saved, and nothing else.

        0.26 reports every finished request; the scheduler has forgotten those that asked for
        no save or were aborted, and the engine dies of an assertion.
        """
        sent, received = super().get_finished(finished_req_ids)
        known = (sent or set()) & self._to_report
        self._to_report -= known
        return known or None, received

    def _submit_async_write(self, pending: Any) -> None:
        self._to_report.add(pending.req_id)  # on every rank: each is waited for
        if not self._is_tp_rank_zero or self._spool is None:
            return
        rows = read_rows(
            self._kv_cache, pending.block_ids, self._block_size, len(pending.token_ids)
        )
        if pending.probe is not None:
            host, event = _to_host(self, rows[:, list(pending.probe)])
            self._spool.submit(_task(f"{pending.key}.probe", host, pending.token_ids, event))
        rows = _in_order(rows, pending.columns)
        flags = None
        if rows.is_cuda:
            # Before the rows: the event of the later copy stands for both.
            flags, _ = _to_host(self, row_flags(rows))
        host, event = _to_host(self, rows)
        self._spool.submit(_task(pending.key, host, pending.token_ids, event, flags))
        # get_finished frees the blocks once this event says that the copy is done.
        self._req_copy_events[pending.req_id] = event


def read_rows(cache: torch.Tensor, blocks: list[int], block_size: int, tokens: int) -> torch.Tensor:
    """Gather one request's rows from the cache.

    Args:
        cache: The hidden-state cache in this release's own layout.
        blocks: The request's block ids, in order.
        block_size: Tokens a block.
        tokens: Rows wanted.

    Returns:
        A new tensor [tokens, columns, hidden] on the cache's device.
    """
    base = torch.tensor(blocks, dtype=torch.long).unsqueeze(1) * block_size
    slots = (base + torch.arange(block_size)).flatten()[:tokens]
    return stock.extract_from_kv_cache(cache, slots.to(cache.device, non_blocking=True), tokens)


def _in_order(rows: torch.Tensor, columns: tuple[int, ...]) -> torch.Tensor:
    """Put columns into the caller's order; rows that are in it already are not copied."""
    same = columns == tuple(range(rows.shape[1]))
    return rows if same else rows[:, list(columns)]


def _to_host(connector: SpoolConnector, rows: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Copy rows to the host; the event tells when they are there."""
    if not rows.is_cuda:
        return rows, _Done()
    stream = connector._get_copy_stream()
    stream.wait_stream(torch.cuda.current_stream(rows.device))
    with torch.cuda.stream(stream):
        host = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=True)
        host.copy_(rows, non_blocking=True)
        # The allocator must not reuse the gathered rows before the copy has run.
        rows.record_stream(stream)
        event = torch.cuda.Event()
        event.record(stream)
    return host, event


def _task(
    key: str,
    rows: torch.Tensor,
    token_ids: torch.Tensor,
    event: Any,
    flags: torch.Tensor | None = None,
) -> SpoolTask:
    wait: Callable[[], None] = event.synchronize
    return SpoolTask(key=key, rows=rows, token_ids=token_ids.tolist(), wait=wait, flags=flags)


def _ran_whole(request: Any) -> bool:
    """Tell whether every prompt token of a finished request was computed.

    The stock connector also saves aborted requests, whose blocks hold old rows.
    """
    prompt = request.prompt_token_ids
    aborted = "ABORTED" in request.status.name or "ERROR" in request.status.name
    return prompt is not None and not aborted and request.num_computed_tokens >= len(prompt)


class _Done:
    """Stands for a device event on a host without one."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None
