"""Copies from a step's tensors to host memory, without holding the step up.

On a GPU the copies run on a stream of their own into pinned memory, ordered after the forward
by an explicit wait; an event tells when they have arrived. On a CPU they are done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch


class Copy:
    """What may be copied inside :meth:`Stage.copying`."""

    def __init__(self, from_device: bool) -> None:
        self._from_device = from_device

    def columns(self, target: torch.Tensor, columns: Sequence[torch.Tensor], rows: slice) -> None:
        """Put the same rows of several tensors side by side into [tokens, columns, hidden]."""
        if self._from_device:
            # One copy of one block: the host side of a strided copy would wait for it.
            target.copy_(torch.stack([c[rows] for c in columns], dim=1), non_blocking=True)
            return
        for number, column in enumerate(columns):
            target[:, number].copy_(column[rows])

    def one(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy one tensor, its dtype turned into the target's."""
        target.copy_(source.to(target.dtype), non_blocking=True)


class Stage:
    """Host buffers and the way into them from one device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._stream = torch.cuda.Stream(device) if self._cuda else None

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return host memory, pinned where a device copies into it."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self._cuda)

    @contextmanager
    def copying(self, *sources: torch.Tensor) -> Iterator[Copy]:
        """Order the copies in the block after all that the current stream holds so far.

        Args:
            sources: Every device tensor that is read; its memory is kept until then.
        """
        if self._stream is None:
            yield Copy(from_device=False)
            return
        # Not the default stream: a worker runs its forward on one of its own.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield Copy(from_device=True)
        for source in sources:
            source.record_stream(self._stream)

    def arrival(self) -> Callable[[], None]:
        """Return a call that waits for every copy made so far."""
        if self._stream is None:
            return lambda: None
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        wait: Callable[[], None] = event.synchronize
        return wait
