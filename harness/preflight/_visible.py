"""``CUDA_VISIBLE_DEVICES``, read as CUDA reads it.

A list of numbers, of ``GPU-`` ids or of ``MIG-`` ids, which may be shortened as long as they
stay unique. It ends at its first bad entry, and one device named twice leaves none at all
(CUDA programming guide, environment variables).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from harness.preflight.facts import Census, Device, Memory, Slice

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class Target:
    """One device as CUDA would see it: a GPU, or one slice of it."""

    device: Device
    slice: Slice | None = None

    @property
    def memory(self) -> Memory | None:
        """Memory of what CUDA sees."""
        return self.device.memory if self.slice is None else self.slice.memory

    @property
    def samples(self) -> tuple[int, ...]:
        """Used bytes of what CUDA sees, sample by sample."""
        return self.device.samples if self.slice is None else self.slice.samples

    @property
    def key(self) -> str:
        """Tells targets apart."""
        return f"{self.device.index}" if self.slice is None else self.slice.uuid


@dataclass(frozen=True)
class Visible:
    """What a process with this environment would see.

    Attributes:
        targets: In CUDA's order, as far as NVML can know it.
        text: The variable's value; None where it is not set.
        order: Value of ``CUDA_DEVICE_ORDER``.
        problem: What is wrong with the list; empty: nothing.
    """

    targets: tuple[Target, ...]
    text: str | None = None
    order: str = ""
    problem: str = ""


def resolve(census: Census, environment: Mapping[str, str]) -> Visible:
    """Return what a process with this environment would see of the devices."""
    text, order = environment.get(VARIABLE), environment.get(ORDER, "")
    if text is None:
        return Visible(tuple(map(_whole, census.devices)), None, order)
    if not text.strip():
        return Visible((), text, order, "it is empty, which hides every device")
    found: list[Target] = []
    for entry in (part.strip() for part in text.split(",")):
        target, problem = _entry(entry, census)
        if target is None:
            # -1 is the documented way to end a list.
            return Visible(tuple(found), text, order, "" if entry == "-1" and found else problem)
        if target.key in {known.key for known in found}:
            return Visible((), text, order, f"{entry!r} names a device a second time")
        found.append(target)
    return Visible(tuple(found), text, order)


def _entry(entry: str, census: Census) -> tuple[Target | None, str]:
    if entry.isascii() and entry.isdecimal():
        device = census.device(int(entry))
        known = f"{len(census.devices)} devices, from 0" if census.devices else "no device"
        return (_whole(device), "") if device else (None, f"there is no {entry!r}: {known}")
    if entry.startswith("GPU-"):
        matches = [_whole(d) for d in census.devices if d.uuid.startswith(entry)]
    elif entry.startswith("MIG-"):
        matches = [
            Target(device, part)
            for device in census.devices
            for part in device.slices
            if part.uuid.startswith(entry)
        ]
    else:
        return None, f"{entry!r} is no number, GPU- id or MIG- id"
    if len(matches) == 1:
        return matches[0], ""
    return None, f"{entry!r} names {'more than one device' if matches else 'no device of this box'}"


def _whole(device: Device) -> Target:
    """Return a device as CUDA shows it by number: its first slice where it is cut."""
    if device.mig[0] and device.slices:
        return Target(device, device.slices[0])
    return Target(device)
