"""Runs in the engine's interpreter: one JSON object, fault name -> whether upstream behaves."""

from __future__ import annotations

import json
import tempfile
import types
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch


def cpu_rotary_rotates_every_head() -> bool:
    """The compiled rotary op on [tokens, heads, dim] equals the one on [tokens, heads * dim]."""
    from vllm.platforms import current_platform

    # The platform picks the build for this processor; another one ends in SIGILL.
    current_platform.import_kernels()
    tokens, heads, dim = 6, 4, 64
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(tokens, heads, dim, generator=generator)
    key = torch.randn(tokens, 1, dim, generator=generator)
    angles = torch.outer(torch.arange(16.0), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.arange(tokens)
    flat_query, flat_key = query.reshape(tokens, -1).clone(), key.reshape(tokens, -1).clone()
    rotate = torch.ops._C.rotary_embedding
    rotate(positions, flat_query, flat_key, dim, cache, False)
    rotate(positions, query, key, dim, cache, False)
    return torch.allclose(query.reshape(tokens, -1), flat_query, atol=1e-5)


def _connector(folder: Path) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1 import (
        example_hidden_states_connector as stock,
    )

    connector = object.__new__(stock.ExampleHiddenStatesConnector)
    connector._pending_saves, connector._req_futures = {}, {}
    connector._request_filenames = {"r": str(folder / "r.safetensors")}
    return connector


def stock_connector_saves_no_aborted_request() -> bool:
    """A request aborted before its prompt was computed has no rows to save."""
    from vllm.v1.request import RequestStatus

    request = types.SimpleNamespace(
        request_id="r",
        kv_transfer_params={},
        prompt_token_ids=[1, 2, 3],
        all_token_ids=[1, 2, 3],
        status=RequestStatus.FINISHED_ABORTED,
        num_computed_tokens=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        connector = _connector(Path(folder))
        connector.request_finished(request, [0])
        return not connector._pending_saves


def stock_connector_reports_a_failed_write() -> bool:
    """A failed write reaches somebody other than the log."""
    failed: Future[None] = Future()
    failed.set_exception(OSError(28, "No space left on device"))
    with tempfile.TemporaryDirectory() as folder:
        connector = _connector(Path(folder))
        before = dict(vars(connector))
        try:
            connector._on_write_done("r", failed)
        except OSError:
            return True
        return dict(vars(connector)) != before


def native_capture_keeps_the_asked_order() -> bool:
    """DeepSeek's backbone answers in the order of the ids, not in ascending order."""
    import inspect

    from vllm.model_executor.models.deepseek_v2 import DeepseekV2Model

    # The ids are only ever asked for membership while the layers are walked upwards.
    source = inspect.getsource(DeepseekV2Model.forward)
    return "idx in self.aux_hidden_state_layers" not in source


PROBES = (
    cpu_rotary_rotates_every_head,
    stock_connector_saves_no_aborted_request,
    stock_connector_reports_a_failed_write,
    native_capture_keeps_the_asked_order,
)

if __name__ == "__main__":
    print(json.dumps({probe.__name__: probe() for probe in PROBES}))
