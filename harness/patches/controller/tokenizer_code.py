"""A tokenizer that comes with code of its own, as Kimi's does."""

from __future__ import annotations

import os
from typing import Any

from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, needed
from harness.seams import Surface

ALLOWED = "HARNESS_PATCHES_TRUST_REMOTE_CODE"
"""Environment variable: ``1`` where the user allows the model's own code."""


class _Tokenizers:
    """Stands for ``AutoTokenizer``: the one call that the generator makes of it."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def from_pretrained(self, *args: Any, **arguments: Any) -> Any:
        allowed = os.environ.get(ALLOWED) == "1"
        return self._original.from_pretrained(*args, **{"trust_remote_code": allowed, **arguments})


def _judge(surface: Surface) -> State:
    return needed("the fault is in speculators 0.3.0")


PATCH = Patch(
    id="tokenizer-code",
    process=Process.CONTROLLER,
    seam=None,
    module=GENERATOR,
    changes=(Change("AutoTokenizer", _Tokenizers),),
    summary="Loads the model's own tokenizer code where the user allows it, and says no where not.",
    fault="a question on the terminal, or ValueError, for a tokenizer with code of its own; the "
    "code of the model's configuration is run without asking",
    silent=False,
    judge=_judge,
    releases=">=0.11",
    retire_when="speculators 0.3 is no longer used",
    upstream="speculators 0.3.0, the constructor",
)
