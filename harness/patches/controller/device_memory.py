"""Free memory is asked of the controller's first device, not of the workers'."""

from __future__ import annotations

from typing import Any

from harness.patches._judge import method
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches.worker.free_memory import free_memory
from harness.seams import Call


class _Cuda:
    def __init__(self, original: Any, latest: list[tuple[int, int]]) -> None:
        self._original, self._latest = original, latest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def mem_get_info(self, *args: Any) -> tuple[int, int]:
        """Return free and total bytes of the worker that has least free."""
        return min(self._latest) if self._latest else self._original.mem_get_info(*args)

    def empty_cache(self) -> None:
        """Do nothing: the controller holds no tensors on a device."""


class _Torch:
    """Stands for ``torch`` in the generator; everything else is torch's own."""

    def __init__(self, original: Any, latest: list[tuple[int, int]]) -> None:
        self._original = original
        self.cuda = _Cuda(original.cuda, latest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _changes() -> tuple[Change, Change]:
    latest: list[tuple[int, int]] = []

    def ask_workers(original: Any) -> Any:
        latest.clear()  # what an earlier generator was told, before the patch was undone

        def _setup_capture(self: Any) -> Any:
            done = original(self)
            latest[:] = self.executor.collective_rpc(free_memory)
            return done

        return _setup_capture

    return (
        Change("VllmHiddenStatesGenerator._setup_capture", ask_workers),
        Change("torch", lambda original: _Torch(original, latest)),
    )


PATCH = Patch(
    id="device-memory",
    process=Process.CONTROLLER,
    seam="executor.collective_rpc",
    module=GENERATOR,
    changes=_changes(),
    summary="Asks every worker for the free memory of its device, and takes the least.",
    fault="RuntimeError: Found no NVIDIA driver on your system (CPU); on GPUs, the memory of "
    "device 0 stands for all, and asking for it costs 0.5 GiB there",
    silent=False,
    judge=method("executor.collective_rpc", Call(positional=1), "0.3.0 asks its own device 0"),
    releases=">=0.11",
    retire_when="speculators' in-process generator is no longer used",
    upstream="speculators 0.3.0, the constructor: torch.cuda.mem_get_info()",
)
