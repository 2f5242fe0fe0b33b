"""The child that asks NVML: what it says in time, however the driver behaves."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures import fake_nvml
from harness.host import processes
from harness.preflight import Probe, Verdict, census, used_bytes
from harness.preflight._nvml_errors import MEANINGS
from harness.preflight.facts import Census
from harness.preflight.probe import with_other

MIB = 1 << 20
FALLS = [[0.0, 60000], [0.3, 0]]
STORY = fake_nvml.load("story-dirty")


def children(folder: Path) -> list[processes.Process]:
    """Return the probes that were started with a state in this folder."""
    return processes.marked(f"FAKE_NVML={folder / 'nvml.json'}")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a state; no probe that was started with it is left."""
    yield tmp_path
    until = time.monotonic() + 3  # one that was killed needs a moment on a busy machine
    while children(tmp_path) and time.monotonic() < until:
        time.sleep(0.02)
    assert children(tmp_path) == []


@pytest.mark.parametrize("name", ["clean-h200", "story-dirty", "r55-visible-mig", "r59-lost"])
def test_a_real_child_tells_what_the_state_says(name: str, folder: Path) -> None:
    state = fake_nvml.load(name)
    found = census(fake_nvml.probe(state, folder))
    told = fake_nvml.read(state)
    still = [replace(device, seconds=0.0) for device in found.devices]
    assert still == [replace(device, seconds=0.0) for device in told.devices]
    assert (found.count, found.driver, found.peers, found.cuda) == (
        told.count,
        told.driver,
        told.peers,
        told.cuda,
    )
    assert fake_nvml.examine(state, found).verdict == state["expect"]["verdict"]


def test_memory_that_falls_is_watched_until_it_rests(folder: Path) -> None:
    state = fake_nvml.expand({"clock": "queries", "devices": [{"used_mib": FALLS}]})
    found = census(fake_nvml.probe(state, folder, settle=3.0))
    (device,) = found.devices
    assert [round(used / MIB) for used in device.samples] == [60000, 40000, 20000, 0, 0, 0]
    assert fake_nvml.examine(state, found).verdict is Verdict.CLEAN


def test_memory_that_does_not_rest_is_told_as_it_is(folder: Path) -> None:
    state = fake_nvml.expand({"devices": [{"used_mib": [[0.0, 60000], [60.0, 0]]}, {}]})
    found = census(fake_nvml.probe(state, folder, settle=0.2))
    moving, resting = found.devices
    assert 20000 * MIB < moving.samples[-1] < moving.samples[0]
    assert set(resting.samples) == {0}
    assert not found.broken


def test_waiting_ends_as_soon_as_memory_is_back(folder: Path) -> None:
    used = [[0.0, 60000], [0.5, 60000], [0.51, 0]]
    state = fake_nvml.expand({"clock": "queries", "devices": [{"used_mib": used}]})
    waited = census(fake_nvml.probe(state, folder, wait=20.0))
    samples = waited.devices[0].samples
    assert samples == (60000 * MIB,) * 6 + (0,) * 3


def test_a_process_that_appears_is_seen(folder: Path) -> None:
    process = {"pid": 77, "used_mib": None, "from": 0.2}
    state = fake_nvml.expand({"clock": "queries", "devices": [{"processes": [process]}]})
    found = census(fake_nvml.probe(state, folder))
    assert [holder.pid for holder in found.devices[0].holders] == [77]


def test_memory_of_a_real_process_goes_with_it(folder: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as holder:
        process = {"pid": holder.pid, "used_mib": 10000, "while_alive": True}
        state = fake_nvml.expand({"devices": [{"used_mib": 3, "processes": [process]}]})
        during = used_bytes(fake_nvml.probe(state, folder))
        holder.kill()
    assert during == {0: 10003 * MIB}
    assert used_bytes(fake_nvml.probe(state, folder)) == {0: 3 * MIB}


@pytest.mark.parametrize("where", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_driver_that_hangs_is_cut_off_in_time(where: str, folder: Path) -> None:
    state = fake_nvml.expand({"devices": [{}], "system": {"errors": {where: "hang"}}})
    found = census(fake_nvml.probe(state, folder, deadline=0.5))
    assert "no answer within 0.5 s" in found.broken
    assert found.seconds < 2.0
    until = time.monotonic() + 0.8  # it would end itself a second after the deadline
    while children(folder) and time.monotonic() < until:
        time.sleep(0.02)
    assert children(folder) == []


def test_the_usual_deadline_is_under_five_seconds() -> None:
    assert Probe().deadline + 0.4 < 5


def test_a_hang_of_cuda_leaves_what_nvml_said(folder: Path) -> None:
    state = fake_nvml.expand({"devices": [{"used_mib": 9000}], "cuda": {"fault": "hang"}})
    found = census(fake_nvml.probe(state, folder, deadline=2.0))
    assert found.devices[0].samples == (9000 * MIB,) * 3
    assert found.broken
    found = census(fake_nvml.probe({**state, "cuda": {"fault": "crash"}}, folder))
    assert "SIGSEGV" in found.broken
    assert fake_nvml.examine(fake_nvml.expand({"devices": [{}]}), found).verdict is Verdict.DIRTY


@pytest.mark.parametrize("crashing", [[0], [3], [1, 2]])
def test_a_device_that_crashes_the_probe_does_not_hide_the_others(
    crashing: list[int], folder: Path
) -> None:
    patch = {index: {"errors": {"nvmlDeviceGetMemoryInfo": "crash"}} for index in crashing}
    found = census(fake_nvml.probe(fake_nvml.expand({"devices": [{}] * 4, "patch": patch}), folder))
    assert not found.broken
    assert [d.index for d in found.devices if d.memory is None] == crashing
    assert all("SIGSEGV" in found.devices[index].problems[0].text for index in crashing)


def test_a_probe_that_ends_without_a_word_is_told_with_its_exit_code(folder: Path) -> None:
    state = fake_nvml.expand({"devices": [{}], "system": {"errors": {"nvmlInit": "exit"}}})
    assert "exit code 7" in census(fake_nvml.probe(state, folder)).broken


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("raise ImportError('no such thing')", "no such thing"),
        ("raise OSError('half of it')", "half of it"),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("print('{\"event\": \"end\"}')\nraise ImportError('loud')", "loud"),
    ],
)
def test_a_broken_binding_is_told(module: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(module)
    found = census(Probe(env={**os.environ, "PYTHONPATH": str(tmp_path)}))
    assert found.failure is not None
    assert found.failure.query == "binding"
    assert text in found.failure.text


def test_an_interpreter_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    found = census(Probe(python=tmp_path / "python"))
    assert found.failure is not None
    assert str(tmp_path / "python") in found.failure.text


def test_the_engines_binding_is_asked_where_ours_is_missing(tmp_path: Path) -> None:
    asked = []

    def reader(probe: Probe) -> Census:
        asked.append(probe.python)
        state = STORY if probe.python == tmp_path else {**STORY, "binding": "missing"}
        return fake_nvml.read(state)

    assert with_other(reader, tmp_path)(Probe()).count == 8
    assert asked == [Path(sys.executable), tmp_path]


def test_this_process_never_loads_the_binding(folder: Path) -> None:
    code = (
        "import sys; from harness.preflight import preflight; report = preflight(); "
        "print(report.verdict, 'pynvml' in sys.modules)"
    )
    env = fake_nvml.environment(STORY, folder)
    env["PYTHONPATH"] = f"{env['PYTHONPATH']}{os.pathsep}{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["DIRTY", "False"]


def test_a_hanging_probe_ends_with_a_killed_parent(folder: Path) -> None:
    state = fake_nvml.expand({"devices": [{}], "system": {"errors": {"nvmlInit": "hang"}}})
    env = fake_nvml.environment(state, folder)
    env["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parents[2]}"
    code = "from harness.preflight.probe import Probe, census; census(Probe(deadline=60))"
    with subprocess.Popen([sys.executable, "-c", code], env=env) as parent:
        until = time.monotonic() + 10
        while len(children(folder)) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        parent.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_the_look_at_a_box_of_eight_stays_under_a_second_in_95_of_100(folder: Path) -> None:
    probe = fake_nvml.probe(STORY, folder, interval=Probe().interval, settle=Probe().settle)
    seconds = sorted(census(probe).seconds for _ in range(100))
    assert seconds[94] < 1.0, seconds


class TestDouble:
    """The double against the real binding."""

    @pytest.fixture
    def real(self) -> Any:
        return pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")

    def test_every_function_has_the_real_ones_arguments(self, real: Any) -> None:
        fake = fake_nvml.fake_pynvml.FakeNvml
        names = [
            name for name in vars(fake) if name.startswith("nvml") and callable(vars(fake)[name])
        ]
        assert len(names) > 20
        for name in names:
            ours = list(inspect.signature(getattr(fake, name)).parameters)[1:]
            theirs = list(inspect.signature(getattr(real, name)).parameters)
            if theirs != ["args", "kwargs"]:  # a decorator hides them
                assert ours == theirs, name

    def test_constants_and_structures_are_the_real_ones(self, real: Any) -> None:
        assert fake_nvml.fake_pynvml.nvmlMemory_v2 == real.nvmlMemory_v2
        fields = [name for name, *_ in real.c_nvmlGpuFabricInfo_t._fields_]
        assert [n for n, *_ in fake_nvml.fake_pynvml.c_nvmlGpuFabricInfo_t._fields_] == fields
        for code, text in fake_nvml.fake_pynvml._TEXTS.items():
            assert str(real.NVMLError(code)) == text

    def test_every_error_of_the_binding_has_a_meaning(self, real: Any) -> None:
        codes = {
            name.removeprefix("NVML_ERROR_"): value
            for name, value in vars(real).items()
            if name.startswith("NVML_ERROR_") and isinstance(value, int)
        }
        assert len(codes) > 25
        assert {MEANINGS[code].name for code in codes.values()} == set(codes)
