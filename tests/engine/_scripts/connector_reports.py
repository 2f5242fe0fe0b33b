"""Prints what our connector reports as sent, on a rank that does not write, and what it saves.

In a process of its own: the base class needs vllm imported.
"""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace
from typing import Any

from harness.inside import connector


def main() -> None:
    """Print both calls' reports, what is saved of finished requests, and what is still held."""
    base: Any = connector.stock.ExampleHiddenStatesConnector
    # As 0.26 does: every finished request counts as sent.
    base.get_finished = lambda self, finished: (set(finished), None)
    made: Any = object.__new__(connector.SpoolConnector)
    made._to_report, made._spool, made._is_tp_rank_zero = set(), None, False
    made._step, made._req_copy_events = connector._Step(made._copy), {}
    made._begun = None
    made._submit_async_write(SimpleNamespace(req_id="saved"))
    said = [made.get_finished({"saved", "plain"}), made.get_finished({"saved"})]
    told = [[None if part is None else sorted(part) for part in one] for one in said]
    # As 0.32 does: only what was copied counts.
    base.get_finished = lambda self, finished: (None, None)
    made._submit_async_write(SimpleNamespace(req_id="late"))
    made.get_finished({"late"})
    print(json.dumps([*told, finished(made), sorted(made._to_report)]))


def finished(made: Any) -> dict[str, Any]:
    """What every rank is sent of a request that has ended, and of one that was cut off."""
    made._pending_saves, found = {}, {}
    made._request_filenames = {"whole": "whole.safetensors", "cut": "cut.safetensors"}
    for name, computed in (("whole", 3), ("cut", 2)):
        request = SimpleNamespace(
            request_id=name,
            prompt_token_ids=[163_000, 5, 7],
            num_computed_tokens=computed,
            status=SimpleNamespace(name="FINISHED_LENGTH_CAPPED"),
            kv_transfer_params={connector.PARAMS: {"key": "k", "columns": [1, 0]}},
        )
        delayed, _ = made.request_finished(request, [4])
        save = made._pending_saves.get(name)
        found[name] = [delayed]
        if save is not None:
            sent = pickle.dumps(save, protocol=pickle.HIGHEST_PROTOCOL)
            got = pickle.loads(sent)
            found[name] += [got.key, list(got.prompt), b"torch" in sent]
    return found


if __name__ == "__main__":
    main()
