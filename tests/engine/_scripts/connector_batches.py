"""Saves the requests of some steps from a cache whose every row says which slot it is.

``connector_batches.py FOLDER [ROWS]``: at most so many rows are read together. In a process of its
own: the base class needs vllm imported. Prints, by sample, the slots that its
file has and the ones that its blocks stand for; how often the cache was read; and which step's
beginning each copy waited for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from harness.inside import connector
from harness.inside.spool import SpoolWriter
from harness.inside.staging import Stage

BLOCK, BLOCKS, COLUMNS, HIDDEN = 4, 64, 3, 8
STEPS = [
    [("a", [5, 2], 7, (0, 1, 2)), ("b", [9], 1, (0, 1, 2)), ("c", [0, 1, 3], 12, (0, 1, 2))],
    [("d", [7], 4, (2, 0)), ("e", [8, 6], 5, (0, 1, 2))],
    [(f"f{n}", [20 + n], 3, (0, 1, 2)) for n in range(6)],
    [("g", [30], 2, (0, 1, 2))],
]
BLIND = 1  # the step whose beginning nobody tells
UNENDED = 2  # the step that has not ended when the next one begins: its rows may be still to come


def cache() -> torch.Tensor:
    """[blocks, columns, block, hidden]: slot in the first place, column in the second."""
    made = torch.zeros(BLOCKS, COLUMNS, BLOCK, HIDDEN)
    slots = torch.arange(BLOCKS * BLOCK).reshape(BLOCKS, BLOCK)
    made[..., 0] = slots[:, None, :]
    made[..., 1] = torch.arange(COLUMNS)[None, :, None]
    made[..., 2:] = torch.randn(BLOCKS, COLUMNS, BLOCK, HIDDEN - 2)
    return made


def save(key: str, blocks: list[int], tokens: int, columns: tuple[int, ...]) -> Any:
    return connector.SpoolSave(
        req_id=key,
        filename="",
        token_ids=torch.tensor([]),
        prompt=list(range(tokens)),
        block_ids=blocks,
        key=key,
        columns=columns,
        probe=(2,) if key == "a" else None,
    )


class Told(Stage):
    """Tells what the copies of each step wait for: the number of a begun step, or everything."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.begun = 0
        self.waited: list[Any] = []

    def now(self) -> Any:
        self.begun += 1
        return self.begun

    @contextmanager
    def beside(self, since: Any = None) -> Iterator[None]:
        self.waited.append(since)
        yield


def main() -> None:
    from safetensors.torch import load_file

    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        connector.parts.__defaults__ = (int(sys.argv[2]),)
    made: Any = object.__new__(connector.SpoolConnector)
    made._to_report, made._is_tp_rank_zero = set(), True
    made._spool = SpoolWriter(folder)
    made._kv_cache, made._block_size = cache(), BLOCK
    made._req_copy_events, made._accumulated_finished_req_ids = {}, set()
    made._lock_fds, made._connector_metadata = {}, None
    made._step = connector._Step(made._copy)
    made._stage = stage = Told()
    made._begun = None
    read, reads = connector.read_rows, []
    vars(connector)["read_rows"] = lambda *args: reads.append(1) or read(*args)
    said, calls = {}, []
    for number, step in enumerate(STEPS):
        if number != BLIND:
            # As every release does before the forward.
            made.bind_connector_metadata(object())
        for one in step:
            made._submit_async_write(save(*one))
        sent, _ = made.get_finished({one[0] for one in step})
        said.update(dict.fromkeys(sent or (), True))
        calls.append(len(reads))
        if number != UNENDED:
            made.clear_connector_metadata()
    made._spool._pool.shutdown()
    found = {}
    for key, blocks, tokens, columns in (one for step in STEPS for one in step):
        rows = load_file(folder / f"{key}.safetensors")["hidden_states"]
        wanted = [block * BLOCK + place for block in blocks for place in range(BLOCK)][:tokens]
        found[key] = {
            "slots": rows[:, 0, 0].long().tolist() == wanted,
            "columns": rows[0, :, 1].long().tolist() == list(columns),
            "sent": said.get(key, False),
        }
    probe = load_file(folder / "a.probe.safetensors")["hidden_states"]
    found["probe"] = {"columns": probe[0, :, 1].tolist() == [2.0], "rows": len(probe) == 7}
    print(json.dumps([found, calls, stage.waited]))


if __name__ == "__main__":
    main()
