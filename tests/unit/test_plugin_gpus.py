"""Counting GPUs without CUDA: NVML, the driver's files, CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.plugin._gpus import count_gpus

NOWHERE = Path("/nowhere")
UUID = "GPU-8b1d2f3a-0000-1111-2222-333344445555"


def nvml(monkeypatch: pytest.MonkeyPatch, names: list[Any]) -> list[str]:
    """Put an NVML with these devices in place; return the calls that start and end it."""
    calls: list[str] = []
    module: Any = ModuleType("pynvml")
    module.nvmlInit = lambda: calls.append("init")
    module.nvmlShutdown = lambda: calls.append("shutdown")
    module.nvmlDeviceGetCount = lambda: len(names)
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetName = lambda handle: names[handle]
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return calls


def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def test_nvml_counts_and_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = nvml(monkeypatch, ["A", b"A", "B"])
    found = count_gpus({})
    assert (found.usable, found.names) == (3, ("A", "A", "B"))
    assert str(found) == "2 x A, 1 x B (NVML counts 3)"
    assert calls == ["init", "shutdown"]


def test_nvml_that_loses_a_device_counts_none_and_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = nvml(monkeypatch, ["A"])

    def lost(handle: int) -> str:
        raise RuntimeError("GPU is lost")

    sys.modules["pynvml"].nvmlDeviceGetName = lost  # type: ignore[attr-defined]
    assert "GPU is lost" in str(count_gpus({}))
    assert count_gpus({}).usable == 0
    assert calls[:2] == ["init", "shutdown"]


@pytest.mark.parametrize(
    ("visible", "usable"),
    [
        (None, 4),
        ("0,1", 2),
        (" 3 , 0", 2),
        ("", 0),
        ("-1", 0),
        ("0,-1,1", 1),
        ("0,9,1", 1),
        ("2,2", 0),
        (UUID, 1),
        ("nonsense", 0),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, usable: int
) -> None:
    nvml(monkeypatch, ["A"] * 4)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = count_gpus(environment)
    assert found.usable == usable
    if visible is not None:
        assert f"CUDA_VISIBLE_DEVICES={visible}" in str(found)


def test_without_nvml_the_drivers_files_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_nvml(monkeypatch)
    for bus in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
    devices = tmp_path / "dev"
    devices.mkdir()
    # A container that was given two of the host's three.
    for name in ("nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    found = count_gpus({}, driver=tmp_path / "gpus", devices=devices)
    assert found.usable == 2
    assert str(found) == "2 GPUs (the driver lists 3, 2 device nodes)"


def test_machine_without_driver_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    no_nvml(monkeypatch)
    found = count_gpus({}, driver=NOWHERE, devices=NOWHERE)
    assert found.usable == 0
    assert "nvidia-ml-py is not installed and /nowhere holds no device" in str(found)
