"""What every capture offers, whatever generation it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.oracles.finding import Finding


@dataclass(frozen=True)
class Request:
    """One prompt on its way to the engine.

    Attributes:
        key: Unique in the capture's life; names the spool file.
        input_ids: Token ids as sent.
        check: Also rebuild this sample's log-probabilities from depth L.
    """

    key: str
    input_ids: Sequence[int]
    check: bool = False


@dataclass(frozen=True)
class Captured:
    """One sample as the spool writer reported it, its file whole in the spool.

    Attributes:
        key: The request's key.
        path: The spool file.
        rows: Tokens in the file.
        columns: Depths in the file.
        hidden: Hidden size.
        dtype: ``float32`` or ``bfloat16``.
        bytes: Size of the file.
        checksum: ``blake3:<hex>`` over the file, taken while it was written.
        token_hash: blake3 (hex) over the token ids as little-endian int64.
        last_row: blake3 (hex) over the last row's bytes, all columns.
        faults: Content faults seen by the writer; empty for a good sample.
        logprobs: ``max_err`` and ``mean_err`` where a check was asked for.
    """

    key: str
    path: Path
    rows: int
    columns: int
    hidden: int
    dtype: str
    bytes: int
    checksum: str
    token_hash: str
    last_row: str
    faults: Sequence[Mapping[str, Any]] = ()
    logprobs: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Loaded:
    """What the engine says of itself after a load.

    Attributes:
        versions: Package -> version in the engine's interpreter.
        resolved: Dotted setting -> value as text, as the engine resolved it.
        workers: One entry a worker: runner, model class, attention, device, dtype.
        seconds: ``import`` and ``load``.
    """

    versions: Mapping[str, str]
    resolved: Mapping[str, str]
    workers: Sequence[Mapping[str, Any]]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class BatchTimes:
    """Seconds of one batch: until the engine was done, and until every file was whole."""

    generate: float
    files: float


class Capture(Protocol):
    """Turns token ids into hidden states; patched and native look alike from here."""

    @property
    def name(self) -> str:
        """``native`` or ``patched``."""

    @property
    def spool(self) -> Path:
        """Folder where finished files appear."""

    def load(self) -> Loaded:
        """Start the engine; exactly once."""

    def prove(self) -> Sequence[Finding]:
        """Run the canary; anything but an empty answer means: write nothing."""

    def run(self, requests: Sequence[Request], on_sample: Callable[[Captured], None]) -> BatchTimes:
        """Capture a batch, calling ``on_sample`` as each file gets whole."""

    def close(self) -> None:
        """End the engine and everything it started."""
