"""Does NVML answer, and does every device that is needed?"""

from __future__ import annotations

from collections.abc import Iterator

from harness.preflight._check import Check, Scene
from harness.preflight._nvml_errors import meaning, next_step
from harness.preflight.facts import Device
from harness.preflight.verdict import Finding, Verdict

_REQUIRED = frozenset({"init", "binding", "start", "count", "handle", "memory", "device"})


def _answers(scene: Scene) -> Iterator[Finding]:
    census, check = scene.census, "nvml.answers"
    expected = "NVML starts and counts the GPUs"
    if census.failure is not None:
        said = meaning(census.failure)
        if not scene.host.boards and not scene.host.gpus and said.name in _NO_GPU:
            text = "there is no NVIDIA GPU on this machine"
            step = "go to a machine with GPUs; a CPU engine needs no preflight"
            yield Finding(check, Verdict.UNKNOWN, text, "an NVIDIA GPU", step)
            return
        text = f"{said.sentence} ({census.failure.text})"
        yield Finding(check, said.required, text, expected, next_step(census.failure))
        return
    if census.broken:
        text = f"{census.broken}; what it said before that is shown"
        step = "harness preflight again; if it stays, nvidia-smi on the host, then dmesg"
        yield Finding(check, Verdict.UNKNOWN, text, expected, step)
    for problem in census.problems:
        said = meaning(problem)
        verdict = said.required if problem.query in _REQUIRED else Verdict.CLEAN
        text = f"{problem.query}: {said.sentence} ({problem.text})"
        yield Finding(check, verdict, text, expected, next_step(problem))


_NO_GPU = frozenset({"NO_BINDING", "LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "GPU_NOT_FOUND"})


def _devices(scene: Scene) -> Iterator[Finding]:
    for device in scene.devices:
        yield from _device(device)
    used = {device.index for device in scene.devices}
    for device in scene.census.devices:
        for finding in _device(device) if device.index not in used else ():
            if finding.verdict is not Verdict.CLEAN:
                text = f"{finding.found}; it would not be used"
                yield Finding(
                    finding.check, Verdict.CLEAN, text, finding.expected, "", device.index
                )


def _device(device: Device) -> Iterator[Finding]:
    seen = set()
    for problem in device.problems:
        said = meaning(problem)
        required = problem.query in _REQUIRED
        verdict = said.required if required else said.optional
        # Fields that a board does not have are not news.
        if verdict is Verdict.CLEAN and said.name == "NOT_SUPPORTED":
            continue
        if said.name in seen:
            continue
        seen.add(said.name)
        text = f"{said.sentence} ({problem.query}: {problem.text})"
        yield Finding(
            "nvml.devices",
            verdict,
            text,
            "an answer from every GPU that is used",
            next_step(problem, device.index),
            device.index,
        )


CHECKS = (
    Check(
        "nvml.answers",
        "NVML starts, counts, and answers in time",
        "an answer within 4.5 s (`--deadline`); a machine without a GPU is UNKNOWN, not CLEAN",
        "a healthy box answers in well under 1 s; a hung driver would hang the load, too",
        _answers,
    ),
    Check(
        "nvml.devices",
        "every GPU that is used answers",
        "memory must be told; other questions may be not supported or not known to the driver",
        "only memory decides; one lost GPU must be named and must not hide the others",
        _devices,
    ),
)
