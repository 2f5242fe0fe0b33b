"""Counting GPUs without CUDA: NVML, the driver's files, CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures import fake_nvml
from harness.plugin._gpus import count_gpus

NOWHERE = Path("/nowhere")
UUID = "GPU-8b1d2f3a-0000-1111-2222-333344445555"


def box(monkeypatch: pytest.MonkeyPatch, *devices: dict[str, Any], **state: Any) -> None:
    """Put a box in this machine's place, without a child."""
    whole = fake_nvml.expand({"devices": list(devices), **state})
    monkeypatch.setattr(
        "harness.preflight.probe.census", lambda probe: fake_nvml.read(whole, probe)
    )


def test_nvml_is_asked_in_a_child_and_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = fake_nvml.expand({"devices": [{"name": "A"}, {"name": "A"}, {"name": "B"}]})
    for name, value in fake_nvml.environment(state, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # whoever imports it here fails
    found = count_gpus({})
    assert (found.usable, found.names) == (3, ("A", "A", "B"))
    assert str(found) == "2 x A, 1 x B (NVML counts 3)"


def test_a_lost_device_is_named_and_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box(monkeypatch, {"name": "A", "error": 15})
    assert "GPU is lost" in str(count_gpus({}))
    assert count_gpus({}).usable == 0
    box(monkeypatch, {"name": "A"}, {"name": "A", "error": 15}, {"name": "A"})
    assert str(count_gpus({})) == "2 x A (NVML counts 3; GPU 1: GPU is lost)"


def test_a_device_that_does_not_tell_its_name_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    box(monkeypatch, {"errors": {"nvmlDeviceGetName": 3, "nvmlDeviceGetUUID": 3}})
    assert str(count_gpus({})) == "1 GPUs (NVML counts 1)"


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_nvml_that_fails_counts_none_and_says_why(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    box(monkeypatch, {"name": "A"}, system={"errors": {call: 999}})
    assert count_gpus({}).usable == 0
    assert "Unknown Error" in str(count_gpus({}))


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
        (UUID[:12], 1),
        (f"{UUID},0", 0),
        ("GPU-ffff", 0),
        ("nonsense", 0),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, usable: int
) -> None:
    box(monkeypatch, {"name": "A", "uuid": UUID}, *[{"name": "A"}] * 3)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = count_gpus(environment)
    assert found.usable == usable
    if visible is not None:
        assert f"CUDA_VISIBLE_DEVICES={visible}" in str(found)


@pytest.mark.parametrize(("visible", "usable"), [(None, 2), ("1", 1), ("7", 0), (UUID, 1)])
def test_without_nvml_the_drivers_files_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str | None, usable: int
) -> None:
    box(monkeypatch, binding="missing")
    for bus in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / bus).mkdir(parents=True)
    devices = tmp_path / "dev"
    devices.mkdir()
    # A container that was given two of the host's three.
    for name in ("nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = count_gpus(environment, root=tmp_path)
    assert found.usable == usable
    if visible is None:
        assert str(found) == "2 GPUs (no nvidia-ml-py; the driver shows 2)"


def test_machine_without_driver_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    box(monkeypatch, binding="missing")
    found = count_gpus({}, root=NOWHERE)
    assert found.usable == 0
    assert "nvidia-ml-py is not installed" in str(found)
    assert "/nowhere/proc/driver/nvidia/gpus holds no device" in str(found)
