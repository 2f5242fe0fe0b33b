"""What NVML says of the GPUs, as plain facts: no verdict, no printing, no call.

Bytes are bytes, times are seconds. A fact that NVML did not give is None, and the reason is a
:class:`Problem` of the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

HolderKind = Literal["compute", "graphics", "mps"]

BEYOND: Final = -1
"""Code of a :class:`Problem` that is not NVML's: no binding, no answer, a crash."""

CRASHED: Final = "ended the probe"
STUCK: Final = "no answer"


@dataclass(frozen=True)
class Problem:
    """A query that was not answered.

    Attributes:
        query: What was asked, such as ``memory``.
        code: NVML's own number (``nvmlReturn_t``); :data:`BEYOND` where it gave none.
        text: What was said instead.
    """

    query: str
    code: int
    text: str


@dataclass(frozen=True)
class Memory:
    """Memory of a device or MIG slice, in bytes.

    Attributes:
        total: Installed memory.
        used: Allocated, without the reserved part where that is known.
        reserved: What driver and firmware keep; None where the driver cannot split it off,
            and ``used`` then holds it.
    """

    total: int
    used: int
    reserved: int | None

    @property
    def usable(self) -> int:
        """What programs can get at most."""
        return self.total - (self.reserved or 0)

    @property
    def free(self) -> int:
        """What programs can get now."""
        return self.usable - self.used


@dataclass(frozen=True)
class Holder:
    """A process as NVML lists it; its pid is one of the host's and may mean nothing here."""

    pid: int
    kind: HolderKind
    used: int | None = None


@dataclass(frozen=True)
class Slice:
    """A MIG slice."""

    uuid: str
    memory: Memory | None
    samples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Health:
    """What a device says of its own state; None: not told, or not supported.

    Attributes:
        uncorrected: Uncorrectable ECC errors since the driver was loaded.
        remap_pending: Rows, or pages, wait for a reset to be replaced.
        remap_failed: A row could not be replaced any more.
        throttle: Bits of ``nvmlClocksEventReasons``.
        compute_mode: ``nvmlComputeMode_t``.
        fabric_state: ``nvmlGpuFabricState_t``: 0 none, 1 not started, 2 in progress, 3 done.
        fabric_status: NVML's result for joining the fabric; 0 is success.
        links_active: NVLinks that are up.
        links_known: NVLinks that answered.
        busy: Percent of the last moments in which a kernel ran.
    """

    uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    throttle: int | None = None
    compute_mode: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None
    links_active: int | None = None
    links_known: int | None = None
    busy: int | None = None


@dataclass(frozen=True)
class Device:
    """One GPU.

    Attributes:
        index: NVML's number, in the order of the PCI bus; what ``nvidia-smi -i`` takes.
        uuid: ``GPU-...``.
        name: Model.
        bus: PCI address.
        minor: Number of ``/dev/nvidiaN``.
        memory: The last sample.
        samples: ``used`` of every sample, in order.
        seconds: Time between the first sample and the last.
        holders: Who holds memory, in the last sample.
        mig: Whether it is cut into slices, and whether it will be after a reset.
        slices: Its MIG slices.
        health: What it says of its own state.
        problems: What it did not answer.
    """

    index: int
    uuid: str = ""
    name: str = ""
    bus: str = ""
    minor: int | None = None
    memory: Memory | None = None
    samples: tuple[int, ...] = ()
    seconds: float = 0.0
    holders: tuple[Holder, ...] = ()
    mig: tuple[bool, bool] = (False, False)
    slices: tuple[Slice, ...] = ()
    health: Health = field(default_factory=Health)
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Cuda:
    """What ``cuInit`` said in the probe; no context was made.

    Attributes:
        code: ``CUresult``; 0 is success, None where there is no driver library.
        count: Devices that CUDA sees, ``CUDA_VISIBLE_DEVICES`` applied.
        text: What was said where it failed.
    """

    code: int | None
    count: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Census:
    """All that NVML said at one time.

    Attributes:
        driver: Version of the driver that the library belongs to.
        cuda_driver: CUDA version of the driver, such as 13000 for 13.0.
        count: Devices that NVML counts; None where it did not come to that.
        devices: Those that were asked, by index.
        peers: Peer access of pairs of devices: (lower index, higher index, ``nvmlGpuP2PStatus``).
        cuda: What ``cuInit`` said; None where it was not asked, or did not come to that.
        failure: Why NVML cannot be used at all.
        broken: How the probe ended too early: a hang or a crash, in words.
        problems: What was not answered for the machine as a whole.
        seconds: How long the asking took.
    """

    driver: str = ""
    cuda_driver: int | None = None
    count: int | None = None
    devices: tuple[Device, ...] = ()
    peers: tuple[tuple[int, int, int], ...] = ()
    cuda: Cuda | None = None
    failure: Problem | None = None
    broken: str = ""
    problems: tuple[Problem, ...] = ()
    seconds: float = 0.0

    def device(self, index: int) -> Device | None:
        """Return the device with an index."""
        return next((device for device in self.devices if device.index == index), None)
