"""An engine's supervisor as its plan makes it: which GPUs are read, which loads are alike."""

from __future__ import annotations

import pytest

from harness.extraction._watched import NvmlDevices
from harness.host.supervision.pulse import DeviceReading
from harness.preflight import Census, Device, Probe
from harness.preflight.facts import Health, Memory

GIB = 2**30


def device(index: int, used: int | None, busy: int | None = None) -> Device:
    memory = None if used is None else Memory(total=140 * GIB, used=used, reserved=0)
    return Device(index=index, uuid=f"GPU-{index}", memory=memory, health=Health(busy=busy))


def reading(*devices: Device, names: tuple[str, ...]) -> object:
    def reader(probe: Probe) -> Census:
        assert not probe.cuda
        return Census(devices=devices)

    return NvmlDevices(names, reader).read()


@pytest.mark.parametrize("names", [("GPU-1",), ("1",)])
def test_only_the_engines_own_gpus_are_read(names: tuple[str, ...]) -> None:
    found = reading(device(0, GIB, 99), device(1, 2 * GIB, 7), names=names)
    assert found == {"GPU 1": DeviceReading(2 * GIB, 7)}


def test_all_gpus_are_read_where_none_is_named() -> None:
    found = reading(device(0, GIB), device(1, 2 * GIB), names=("all",))
    assert found == {"GPU 0": DeviceReading(GIB), "GPU 1": DeviceReading(2 * GIB)}


def test_gpu_that_does_not_answer_makes_the_reading_unknown_and_never_idle() -> None:
    assert reading(device(0, GIB), device(1, None), names=("all",)) is None
    assert reading(device(0, GIB), names=("GPU-9",)) is None
    assert reading(names=("all",)) is None
