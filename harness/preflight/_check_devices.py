"""Are the devices that an engine needs there, visible, alike, and usable?"""

from __future__ import annotations

from collections.abc import Iterator

from harness.preflight._check import Check, Scene, size
from harness.preflight._visible import ORDER, VARIABLE
from harness.preflight.verdict import Finding, Verdict

_EXCLUSIVE, _PROHIBITED = (1, 3), 2
_SAME_MEMORY = 0.01
_CUDA_ERRORS = {
    2: "CUDA is out of memory before anything was started",
    3: "CUDA is not initialised",
    34: "libcuda is a stub, not the driver's library",
    46: "the GPU is in exclusive use by another process, or prohibited",
    100: "CUDA sees no device",
    101: "CUDA is given a device that is not there",
    802: "the system is not yet initialised: on boxes with NVSwitch the fabric manager does not "
    "run, or is of another version than the driver",
    803: "driver and libcuda are of different versions",
    804: "the forward-compatible libcuda in use does not know this GPU",
    999: "CUDA fails and does not say why",
}
_CUDA_STEPS = {
    802: "an operator: systemctl status nvidia-fabricmanager; its version must be the driver's",
    803: "reboot, or start the container anew",
    804: "take cuda-compat off LD_LIBRARY_PATH",
}


def _visible(scene: Scene) -> Iterator[Finding]:
    visible = scene.visible
    if not visible.problem or scene.census.count is None:
        return
    text = f"{VARIABLE}={visible.text}: {visible.problem}"
    # A list that CUDA cuts short still shows its beginning.
    verdict = Verdict.UNKNOWN if visible.targets else Verdict.DIRTY
    if visible.targets:
        text += f"; CUDA sees the {len(visible.targets)} before it"
    yield Finding(
        "devices.visible",
        verdict,
        text,
        "numbers, GPU- ids or MIG- ids of this box, each once",
        f"export {VARIABLE}=LIST, of `nvidia-smi -L`",
    )


def _count(scene: Scene) -> Iterator[Finding]:
    census, host = scene.census, scene.host
    if census.count is None:
        return  # said by nvml.answers
    found, wanted = len(scene.visible.targets), scene.need.devices or 1
    if found < wanted:
        yield Finding(
            "devices.count",
            Verdict.DIRTY,
            f"{found} visible",
            f"{wanted} for {wanted} workers" if wanted > 1 else "at least one GPU",
            f"a smaller --tensor-parallel-size, or another {VARIABLE}",
        )
    if census.count is not None and census.count < host.gpus:
        yield Finding(
            "devices.count",
            Verdict.DIRTY,
            f"NVML counts {census.count}, the driver's files show {host.gpus}: one is lost",
            "every GPU of the box",
            "an operator: dmesg | grep -i nvrm, then a reboot",
        )


def _order(scene: Scene) -> Iterator[Finding]:
    visible = scene.visible
    models = {device.name for device in scene.census.devices if device.name}
    by_number = visible.text is None or any(p.strip().isdecimal() for p in visible.text.split(","))
    if len(models) > 1 and by_number and visible.order != "PCI_BUS_ID":
        yield Finding(
            "devices.order",
            Verdict.UNKNOWN,
            f"{len(models)} models, and CUDA numbers the fastest first: number 0 may be another "
            "GPU here than for CUDA",
            f"{ORDER}=PCI_BUS_ID, or GPU- ids",
            f"export {ORDER}=PCI_BUS_ID",
        )


def _same(scene: Scene) -> Iterator[Finding]:
    names = dict.fromkeys(device.name for device in scene.devices if device.name)
    sizes = [target.memory.total for target in scene.targets if target.memory is not None]
    if len(names) > 1:
        found = " beside ".join(names)
    elif sizes and max(sizes) - min(sizes) > _SAME_MEMORY * max(sizes):
        found = f"memory of {size(min(sizes))} beside {size(max(sizes))}"
    else:
        return
    verdict = Verdict.DIRTY if scene.need.shared else Verdict.CLEAN
    step = f"choose equal ones: {VARIABLE}" if scene.need.shared else ""
    yield Finding("devices.same", verdict, found, "GPUs of one model and size", step)


def _mode(scene: Scene) -> Iterator[Finding]:
    for device in scene.devices:
        mode = device.health.compute_mode
        if mode == _PROHIBITED:
            text, verdict = "compute mode is prohibited: no CUDA program can use it", Verdict.DIRTY
        elif mode in _EXCLUSIVE:
            text, verdict = "compute mode is exclusive: one process at a time", Verdict.CLEAN
        else:
            continue
        step = f"an operator: nvidia-smi -i {device.index} -c DEFAULT" if verdict else ""
        yield Finding("devices.mode", verdict, text, "the default mode", step, device.index)


def _mig(scene: Scene) -> Iterator[Finding]:
    shared = scene.need.shared
    for device in scene.devices:
        now, after = device.mig
        text = ""
        if now != after:
            text = f"MIG is {_on(now)} and will be {_on(after)} after a reset"
            step = f"an operator: nvidia-smi -i {device.index} -mig {int(now)}, or a reset"
        elif now and not device.slices:
            text, step = (
                "MIG is on and there is no slice: CUDA can use nothing of it",
                "nvidia-smi mig",
            )
        elif now and shared:
            text = "MIG is on: a CUDA process sees one slice, and slices cannot share a model"
            step = f"an operator: nvidia-smi -i {device.index} -mig 0; or other GPUs"
        if text:
            yield Finding(
                "devices.mig", Verdict.DIRTY, text, "MIG off, or one slice", step, device.index
            )


def _on(state: bool) -> str:
    return "on" if state else "off"


def _cuda(scene: Scene) -> Iterator[Finding]:
    cuda, check = scene.census.cuda, "devices.cuda"
    if cuda is None or not scene.census.devices:
        return
    expected = "cuInit succeeds and sees the same devices"
    if cuda.code is None:
        step = "start the container with the capability `compute`: NVIDIA_DRIVER_CAPABILITIES"
        text = f"the driver's libcuda cannot be used: {cuda.text}"
        yield Finding(check, Verdict.DIRTY, text, expected, step)
    elif cuda.code:
        text = _CUDA_ERRORS.get(cuda.code, "CUDA does not start")
        step = _CUDA_STEPS.get(cuda.code, "nvidia-smi, then dmesg")
        yield Finding(check, Verdict.DIRTY, f"{text} (error {cuda.code})", expected, step)
    elif cuda.count is not None and cuda.count < len(scene.targets):
        text = f"CUDA sees {cuda.count} devices, NVML shows {len(scene.targets)}"
        yield Finding(check, Verdict.DIRTY, text, expected, "nvidia-smi, then dmesg")


CHECKS = (
    Check(
        "devices.visible",
        f"{VARIABLE}: numbers, GPU- and MIG- ids",
        "set to entries of this box, each once, or not set",
        "CUDA cuts the list at its first bad entry and shows nothing where one is named twice, "
        "both without a word",
        _visible,
    ),
    Check(
        "devices.count",
        "as many visible GPUs as workers, and none lost",
        "`--tensor-parallel-size` visible ones; as many as the driver's files show",
        "a GPU that fell off the bus may simply not be counted",
        _count,
    ),
    Check(
        "devices.order",
        f"numbers mean the same GPU here and for CUDA ({ORDER})",
        "one model in the box, or PCI_BUS_ID, or ids",
        "with several models CUDA numbers the fastest first and NVML by bus, so a clean GPU here "
        "may be a busy one there",
        _order,
    ),
    Check(
        "devices.same",
        "one model and one size of memory",
        "equal names, memory within 1 %",
        "the smallest bounds all workers, and mixed kernels are not what was measured",
        _same,
    ),
    Check(
        "devices.mode",
        "compute mode",
        "not prohibited",
        "CUDA would fail in the workers, after the imports",
        _mode,
    ),
    Check(
        "devices.mig",
        "MIG state",
        "no change pending; where it is on, a slice, and one worker",
        "a process sees one slice only, and slices cannot reach each other",
        _mig,
    ),
    Check(
        "devices.cuda",
        "cuInit in the probe, without a context",
        "success, with as many devices as NVML shows",
        "NVML and nvidia-smi are fine on boxes where CUDA is not, as without a fabric manager",
        _cuda,
    ),
)
