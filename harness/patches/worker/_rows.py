"""Captured rows by request and position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.errors import CheckFailed


@dataclass
class Rows:
    """What one call of ``generate`` captures in one worker.

    Iterating gives for each captured layer, ascending, the list of its pieces: prompt after
    prompt as submitted, chunk after chunk. That is what 0.3.0 concatenates and cuts.
    """

    _chunks: dict[str, list[tuple[int, int, Sequence[Any]]]] = field(default_factory=dict)
    _lengths: dict[str, int] = field(default_factory=dict)

    def add(
        self, layers: Sequence[Any], requests: Sequence[tuple[str, int, int, int]], rows: int
    ) -> None:
        """Take the rows of one step.

        Args:
            layers: A tensor ``[rows, hidden]`` for each captured layer, ascending.
            requests: In the order of the rows: request id, first position, tokens in this step,
                length of the prompt.
            rows: Rows of each tensor, with padding at the end.

        Raises:
            CheckFailed: ``patches.rows``.
        """
        wanted = sum(count for _, _, count, _ in requests)
        if rows < wanted:
            raise _wrong("a step", f"{wanted} rows", f"{rows}; are they split over ranks?")
        offset = 0
        for name, start, count, length in requests:
            chunk = (start, count, [layer[offset : offset + count] for layer in layers])
            # A request that was preempted begins again.
            self._chunks[name] = [*(self._chunks.get(name, []) if start else []), chunk]
            self._lengths[name] = length
            offset += count

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the pieces of each layer.

        Raises:
            CheckFailed: ``patches.rows``: a row of a prompt is missing or came twice.
        """
        chunks = [chunk for name in self._submitted() for chunk in self._whole(name)]
        for layer in range(len(chunks[0][2]) if chunks else 0):
            yield [pieces[layer] for _, _, pieces in chunks]

    def _submitted(self) -> list[str]:
        """Request ids in the order of submission, which their last number tells."""
        try:
            numbers = {int(name.rpartition("_")[2]): name for name in self._chunks}
        except ValueError:
            raise _wrong("request ids", "req_CALL_NUMBER", ", ".join(self._chunks)) from None
        if sorted(numbers) != list(range(len(self._chunks))):
            raise _wrong("request ids", "numbers from 0 on", ", ".join(sorted(self._chunks)))
        return [numbers[number] for number in sorted(numbers)]

    def _whole(self, name: str) -> list[tuple[int, int, Sequence[Any]]]:
        following = 0
        for start, count, _ in self._chunks[name]:
            if start != following:
                raise _wrong(name, f"rows from {following} on", f"rows from {start} on")
            following += count
        if following != self._lengths[name]:
            raise _wrong(name, f"{self._lengths[name]} rows", f"{following}")
        return self._chunks[name]


def _wrong(where: str, expected: str, found: str) -> CheckFailed:
    return CheckFailed(
        "patches.rows",
        expected=expected,
        found=found,
        where=where,
        next="report it with the versions that harness patches check prints",
    )
