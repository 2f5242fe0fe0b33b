"""What an engine will need of the box; whoever estimates it fills this in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Need:
    """What must be there before an engine is started. Sizes are bytes.

    Attributes:
        devices: So many GPUs, the first of those that are visible; None: every visible one.
        utilization: Share of each GPU's memory that vLLM claims; it refuses to start where less
            is free.
        share_bytes: What that share must hold at least, where somebody has estimated it.
        device_bytes: What must be free on each GPU, within the share and beside it, where
            somebody has estimated it; None asks for the share and a CUDA context.
        host_bytes: Host memory of all workers together.
        page_cache: Bytes of the checkpoint, which the kernel keeps in memory while there is room.
        disk: Folder that the output goes to, or one that it will lie in; None: not asked.
        disk_bytes: What will be written there.
        disk_files: Files that will be made there.
        cuda: CUDA version that the engine's wheels were built with, such as ``12.8``; empty
            where it is not known.
    """

    devices: int | None = None
    utilization: float = 0.85
    share_bytes: int | None = None
    device_bytes: int | None = None
    host_bytes: int = 0
    page_cache: int = 0
    disk: Path | None = None
    disk_bytes: int = 0
    disk_files: int = 0
    cuda: str = ""

    @property
    def shared(self) -> bool:
        """Whether several workers share the model."""
        return (self.devices or 0) > 1

    def claim(self, usable: int) -> int:
        """Return what an engine claims of a device with so many usable bytes."""
        return int(self.utilization * usable)
