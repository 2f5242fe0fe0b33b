"""Are the devices sound, at full speed, and connected as workers that share a model need it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from harness.preflight._check import Check, Scene
from harness.preflight.verdict import Finding, Verdict

_SLOWED = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}
_WORTH_KNOWING = {
    0x02: "clocks are set by somebody",
    0x04: "power cap",
    0x10: "clocks are bound to another GPU's (sync boost)",
}
_FABRIC = {1: "not started", 2: "in progress"}
_FABRIC_DONE, _PEER_OK = 3, 0
_PEER = {
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "they hang on different I/O hubs",
    4: "switched off by a setting of the driver",
    5: "not supported",
    6: "not known why",
}


def _ecc(scene: Scene) -> Iterator[Finding]:
    for device in scene.devices:
        if count := device.health.uncorrected:
            yield Finding(
                "health.ecc",
                Verdict.DIRTY,
                f"{count} uncorrectable memory errors since the driver was loaded",
                "none",
                f"an operator: nvidia-smi --gpu-reset -i {device.index}; if it recurs, replace it",
                device.index,
            )


def _remap(scene: Scene) -> Iterator[Finding]:
    for device in scene.devices:
        if device.health.remap_failed:
            text, step = "a bad row of memory could not be replaced", "an operator: replace the GPU"
        elif device.health.remap_pending:
            text = "a bad row of memory waits for a reset to be replaced"
            step = f"an operator: nvidia-smi --gpu-reset -i {device.index}"
        else:
            continue
        yield Finding("health.remap", Verdict.DIRTY, text, "no row waiting", step, device.index)


def _clocks(scene: Scene) -> Iterator[Finding]:
    for device in scene.devices:
        bits = device.health.throttle or 0
        slowed = [name for bit, name in _SLOWED.items() if bits & bit]
        known = [name for bit, name in _WORTH_KNOWING.items() if bits & bit]
        if slowed:
            step = "an operator: temperature, fans and power: nvidia-smi -q -d PERFORMANCE"
            text = f"slowed down while idle: {', '.join(slowed)}"
            yield Finding(
                "health.clocks", Verdict.DIRTY, text, "no such reason", step, device.index
            )
        elif known:
            text = ", ".join(known)
            yield Finding("health.clocks", Verdict.CLEAN, text, device=device.index)


def _fabric(scene: Scene) -> Iterator[Finding]:
    for device in scene.devices:
        state, status = device.health.fabric_state, device.health.fabric_status
        if state in _FABRIC:
            text = f"joining the NVLink fabric: {_FABRIC[state]}"
        elif state == _FABRIC_DONE and status:
            text = f"joining the NVLink fabric failed (NVML error {status})"
        else:
            continue
        step = (
            "an operator: systemctl status nvidia-fabricmanager; its version must be the driver's"
        )
        yield Finding("links.fabric", Verdict.DIRTY, text, "joined", step, device.index)


def _nvlink(scene: Scene) -> Iterator[Finding]:
    if not scene.need.shared:
        return
    active = {
        device.index: device.health.links_active
        for device in scene.devices
        if device.health.links_active is not None
    }
    usual = max(Counter(active.values()).items(), key=lambda c: (c[1], c[0]), default=(0, 0))[0]
    for index, count in active.items():
        if count != usual:
            yield Finding(
                "links.nvlink",
                Verdict.DIRTY,
                f"{count} NVLinks are up, on the others {usual}",
                "as many on every GPU",
                f"an operator: nvidia-smi nvlink -s -i {index}",
                index,
            )


def _peer(scene: Scene) -> Iterator[Finding]:
    used = {device.index for device in scene.devices}
    pairs = [(a, b, s) for a, b, s in scene.census.peers if a in used and b in used]
    without = [pair for pair in pairs if pair[2] != _PEER_OK]
    if not scene.need.shared or not without:
        return
    one, other, status = without[0]
    why = _PEER.get(status, f"status {status}")
    if len(without) == len(pairs):
        text = f"no GPU can reach another's memory ({why}): workers exchange through the host"
        yield Finding("links.peer", Verdict.CLEAN, text)
        return
    text = (
        f"{len(without)} of {len(pairs)} pairs cannot reach each other, as {one} and {other}: {why}"
    )
    step = "nvidia-smi topo -p2p r; choose GPUs that reach each other"
    yield Finding("links.peer", Verdict.UNKNOWN, text, "all pairs, or none", step)


CHECKS = (
    Check(
        "health.ecc",
        "uncorrectable memory errors",
        "0 since the driver was loaded; ECC switched off, or errors of earlier boots, pass",
        "the next kernel that touches the row dies; one that was repaired need not stop anybody",
        _ecc,
    ),
    Check(
        "health.remap",
        "rows of memory that wait to be replaced, or could not be",
        "none",
        "the bad row is still in use until a reset",
        _remap,
    ),
    Check(
        "health.clocks",
        "reasons that cost clocks",
        "no hardware or thermal slowdown and no power brake; set clocks and a power cap are told",
        "an idle GPU that is slowed down has a fault outside of us; a load would take longer "
        "than its budget",
        _clocks,
    ),
    Check(
        "links.fabric",
        "the GPU has joined the NVLink fabric",
        "state `completed` with success, on GPUs that have one",
        "CUDA fails with error 802 on such boxes, where nvidia-smi shows nothing",
        _fabric,
    ),
    Check(
        "links.nvlink",
        "NVLinks that are up, for several workers",
        "as many on each GPU",
        "one link down slows every exchange, or stops the first one",
        _nvlink,
    ),
    Check(
        "links.peer",
        "peer access of the GPUs, for several workers",
        "every pair, or none",
        "a box without it works through the host; one with a gap is misconfigured: NCCL may hang",
        _peer,
    ),
)
