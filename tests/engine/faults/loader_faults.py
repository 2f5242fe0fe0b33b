"""Seeded faults of a load, chosen by ``HARNESS_TEST_LOADER_FAULT``; preloaded into the workers.

``raise``: every rank raises after its third weight. ``hang``: rank 1 writes the last line of such
an exception and then, like all others, waits for ever, as ranks do in a collective that one of
them has left.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

MESSAGE = "CUDA error: the provided PTX was compiled with an unsupported toolchain."


def install() -> None:
    from vllm.model_executor.model_loader import default_loader

    real = default_loader.safetensors_weights_iterator

    def broken(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for number, item in enumerate(real(*args, **kwargs)):
            if number == 3:
                fail()
            yield item

    setattr(default_loader, "safetensors_weights_iterator", broken)  # noqa: B010


def fail() -> None:
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    if os.environ["HARNESS_TEST_LOADER_FAULT"] == "raise":
        raise RuntimeError(MESSAGE)
    if get_tensor_model_parallel_rank() == 1:
        time.sleep(2)  # Until rank 0, which shows the progress, is there too.
        print(f"torch.AcceleratorError: {MESSAGE}", file=sys.stderr, flush=True)
    time.sleep(3600)
