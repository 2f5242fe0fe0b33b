"""Copies to the host while the device is kept busy: counts rows that are not what was computed.

Run with the engine's interpreter; prints one JSON object. Each case is run as the harness does
it and once more with the one line left out that orders it, which shows that the case can fail.
"""

from __future__ import annotations

import json
from unittest import mock

import torch

from harness.inside.staging import Stage

ROWS, HIDDEN, COLUMNS = 2048, 7168, 4
POISON = -1.0
BUSY_CYCLES = 1_000_000_000  # about half a second


def columns() -> list[torch.Tensor]:
    """Return one tensor a depth whose rows say which row and which depth they are."""
    rows = torch.arange(ROWS, device="cuda", dtype=torch.float32).unsqueeze(1)
    return [(rows + ROWS * depth).expand(ROWS, HIDDEN).contiguous() for depth in range(COLUMNS)]


def wrong(target: torch.Tensor) -> int:
    want = torch.arange(ROWS, dtype=torch.float32).unsqueeze(1)
    want = want + ROWS * torch.arange(COLUMNS, dtype=torch.float32)
    return int((target != want.unsqueeze(-1)).any(-1).any(-1).sum())


def late_forward() -> int:
    """The rows are still to be computed when the copy is asked for."""
    stage, work = Stage(torch.device("cuda")), torch.cuda.Stream()
    target = stage.empty((ROWS, COLUMNS, HIDDEN), torch.float32).fill_(POISON)
    with torch.cuda.stream(work):
        sources = [torch.full((ROWS, HIDDEN), POISON, device="cuda") for _ in range(COLUMNS)]
        values = columns()
    torch.cuda.synchronize()
    with torch.cuda.stream(work):
        torch.cuda._sleep(BUSY_CYCLES)
        for source, value in zip(sources, values, strict=True):
            source.copy_(value)
        with stage.copying(sources, ROWS) as copy:
            copy.rows(target, slice(0, ROWS))
        stage.arrival().synchronize()
    found = wrong(target)
    torch.cuda.synchronize()
    return found


def reused_memory() -> int:
    """The rows' memory is given to somebody else before the copy has begun."""
    stage, work = Stage(torch.device("cuda")), torch.cuda.Stream()
    target = stage.empty((ROWS, COLUMNS, HIDDEN), torch.float32).fill_(POISON)
    with torch.cuda.stream(work):
        sources = columns()
    torch.cuda.synchronize()
    with torch.cuda.stream(stage._stream):
        torch.cuda._sleep(BUSY_CYCLES)
    with torch.cuda.stream(work):
        with stage.copying(sources, ROWS) as copy:
            copy.rows(target, slice(0, ROWS))
        sources.clear()
        taken = [torch.full((ROWS, HIDDEN), POISON, device="cuda") for _ in range(COLUMNS)]
        stage.arrival().synchronize()
    found = wrong(target)
    del taken
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return found


def early_copy() -> tuple[int, bool]:
    """A step's rows are copied while the next step, already launched, keeps the device busy.

    Returns:
        Wrong rows, and whether they were there before the next step's end.
    """
    stage, work = Stage(torch.device("cuda")), torch.cuda.Stream()
    with torch.cuda.stream(work):
        cache = torch.full((ROWS, COLUMNS, HIDDEN), POISON, device="cuda")
        values = torch.stack(columns(), dim=1)
        # Taking new host memory can wait for the device; a run has its buffers soon.
        with stage.beside():
            stage.back(values[stage.there(torch.arange(ROWS))])
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY_CYCLES)
        cache.copy_(values)  # the step that is read
        begun = stage.now()
        torch.cuda._sleep(4 * BUSY_CYCLES)  # the next step
        with stage.beside(begun):
            target = stage.back(cache[stage.there(torch.arange(ROWS))])
        stage.arrival().synchronize()
        early = not work.query()
    found = wrong(target)
    torch.cuda.synchronize()
    return found, early


def main() -> None:
    nothing = mock.Mock(return_value=None)
    figures = {"rows": ROWS, "device": torch.cuda.get_device_name()}
    figures["late_forward"] = late_forward()
    with mock.patch.object(torch.cuda.Stream, "wait_stream", nothing):
        figures["late_forward_unordered"] = late_forward()
    torch.cuda.empty_cache()
    figures["reused_memory"] = reused_memory()
    with mock.patch.object(torch.Tensor, "record_stream", nothing):
        figures["reused_memory_unordered"] = reused_memory()
    torch.cuda.empty_cache()
    figures["early_copy"], figures["early_copy_came_early"] = early_copy()
    with mock.patch.object(torch.cuda.Stream, "wait_event", nothing):
        figures["early_copy_unordered"], _ = early_copy()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
