"""What an engine really computed with: compared by key, never with a constant.

Which attention backend, kernels and block size vLLM chooses depends on the card and the release
(h200: FLASH_ATTN_MLA and Marlin; other cards get others), so what is right is what was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from harness.baseline.finding import Finding, Status

FACTS: Final = MappingProxyType(
    {
        "runner": "module of the model runner",
        "attention": "class of the first layer's attention",
        "methods": "classes that carry out the layers' weights, quantisation kernels among them",
        "block_size": "tokens of one block of the KV cache",
    }
)
"""Names of the facts, as a worker describes itself, and what each one says."""


def seen(workers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the facts of an engine as texts; one that no worker tells is left out.

    Args:
        workers: What each worker said of itself after the load.
    """
    found: dict[str, str] = {}
    for name in FACTS:
        told = dict.fromkeys(_text(worker[name]) for worker in workers if name in worker)
        if told:
            # Workers that disagree must not look like any one of them.
            found[name] = " | ".join(told)
    return found


def compare(recorded: Mapping[str, str], found: Mapping[str, str]) -> tuple[Finding, ...]:
    """Hold the facts of a running engine against the recorded ones.

    Every recorded fact gives a finding; one that the engine does not tell is a difference too.
    """
    return tuple(
        Finding(
            name,
            Status.OK if found.get(name) == wanted else Status.RED,
            wanted,
            found.get(name, "not told"),
            "" if found.get(name) == wanted else FACTS.get(name, ""),
        )
        for name, wanted in recorded.items()
    )


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} x {count}" for name, count in sorted(value.items()))
    return str(value)
