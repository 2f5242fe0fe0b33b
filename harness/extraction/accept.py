"""The last gate before a sample gets its final name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from blake3 import blake3

from harness.capture.protocol import Captured
from harness.oracles.canary import content_finding, judge_logprobs
from harness.oracles.finding import Finding


class Acceptance:
    """Checks each captured sample against its prompt and against the others.

    The rows themselves were checked in the engine's writer while they were in memory;
    here its report is held to what was asked for, so no sample is read again.

    Args:
        columns: Depths a sample must have.
        hidden: Hidden size.
        dtype: ``float32`` or ``bfloat16``.
    """

    def __init__(self, *, columns: int, hidden: int, dtype: str) -> None:
        self._shape = (columns, hidden, dtype)
        self._owners: dict[str, tuple[str, str]] = {}

    def check(self, sample: Captured, name: str, input_ids: Sequence[int]) -> list[Finding]:
        """Return every fault of one sample; empty when it may be published."""
        findings: list[Finding] = []
        want = token_hash(input_ids)
        if sample.rows != len(input_ids):
            findings.append(Finding(name, "rows", f"{len(input_ids)} rows", f"{sample.rows}"))
        if sample.token_hash != want:
            findings.append(Finding(name, "token-ids", "the prompt's own ids", "other ids"))
        shape = (sample.columns, sample.hidden, sample.dtype)
        if shape != self._shape:
            findings.append(Finding(name, "shape", str(self._shape), str(shape)))
        findings += [content_finding(name, fault) for fault in sample.faults]
        # The last row depends on every token before it: equal rows mean equal prompts.
        owner, owner_ids = self._owners.setdefault(sample.last_row, (name, want))
        if owner_ids != want:
            found = f"its last row is that of {owner}, whose tokens differ"
            findings.append(Finding(name, "foreign-rows", "rows of its own", found))
        if sample.logprobs is not None:
            findings += judge_logprobs(name, sample.logprobs, dtype=sample.dtype)
        return findings


def token_hash(input_ids: Sequence[int]) -> str:
    """Return blake3 (hex) over ids as little-endian int64, as the spool writer takes it."""
    return blake3(np.asarray(input_ids, dtype="<i8").tobytes()).hexdigest()
