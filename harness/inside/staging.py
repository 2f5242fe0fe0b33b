"""Copies from a step's tensors to host memory, without holding the step up.

On a GPU the copies run on a stream of their own into pinned memory, ordered after the forward
by an explicit wait; an event tells when they have arrived. On a CPU they are done at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch


class Copy:
    """What may be copied inside :meth:`Stage.copying`."""

    def __init__(self, columns: Sequence[torch.Tensor], rows: int, from_device: bool) -> None:
        self._columns = columns
        # One block for the whole step: the host side of a strided copy would wait for it.
        self.block = torch.stack([c[:rows] for c in columns], dim=1) if from_device else None

    def rows(self, target: torch.Tensor, source: slice) -> None:
        """Put the same rows of all columns side by side into [tokens, columns, hidden]."""
        if self.block is not None:
            target.copy_(self.block[source], non_blocking=True)
            return
        for number, column in enumerate(self._columns):
            target[:, number].copy_(column[source])

    def one(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy one tensor, its dtype turned into the target's."""
        target.copy_(source.to(target.dtype), non_blocking=True)


class Arrival(Protocol):
    """Says when copies are there; a device event is one."""

    def query(self) -> bool:
        """Tell whether they are."""

    def synchronize(self) -> None:
        """Wait until they are."""


class _Arrived:
    """Copies on a host without a device are done at once."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class Stage:
    """Host buffers and the way into them from one device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda: bool = device.type == "cuda"
        self._device = device
        self._stream = torch.cuda.Stream(device) if self._cuda else None

    @property
    def on_device(self) -> bool:
        """Whether rows come from a device."""
        return self._cuda

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return host memory, pinned where a device copies into it."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self._cuda)

    def now(self) -> torch.cuda.Event | None:
        """Return the place that the current stream has reached, for :meth:`beside`."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def beside(self, since: torch.cuda.Event | None = None) -> Iterator[None]:
        """Run the block's kernels on the copy stream.

        Args:
            since: They wait for nothing later than this; None for all that the current stream
                holds so far, a forward that was just launched too.
        """
        if self._stream is None:
            yield
            return
        if since is None:
            # Not the default stream: a worker runs its forward on one of its own.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        else:
            self._stream.wait_event(since)
        with torch.cuda.stream(self._stream):
            yield

    def there(self, values: torch.Tensor) -> torch.Tensor:
        """Bring host values to the device; inside :meth:`beside`."""
        if self._stream is None:
            return values
        # From pageable memory the host would wait for the forward pass.
        return values.pin_memory().to(self._device, non_blocking=True)

    def back(self, values: torch.Tensor) -> torch.Tensor:
        """Bring values of the block to the host; they are there once :meth:`arrival` says so."""
        if self._stream is None:
            return values
        return self.empty(tuple(values.shape), values.dtype).copy_(values, non_blocking=True)

    @contextmanager
    def copying(
        self, columns: Sequence[torch.Tensor], rows: int, *others: torch.Tensor
    ) -> Iterator[Copy]:
        """Order the copies in the block after all that the current stream holds so far.

        Args:
            columns: Tensors [at least ``rows``, hidden], one a depth.
            rows: Rows of this step; what lies behind them is padding.
            others: Further device tensors that are read.
        """
        with self.beside():
            yield Copy(columns, rows, from_device=self._cuda)
        if self._stream is None:
            return
        for source in (*columns, *others):
            # The allocator must not reuse their memory before the copies have run.
            source.record_stream(self._stream)

    def arrival(self) -> Arrival:
        """Return the event behind every copy made so far."""
        if self._stream is None:
            return _Arrived()
        # A writer thread that spins instead of sleeping takes a core from the engine.
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        arrival: Arrival = event
        return arrival
