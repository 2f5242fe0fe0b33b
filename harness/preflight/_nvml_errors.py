"""Every error of NVML: what it means for a start, in a sentence, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.preflight.facts import BEYOND, CRASHED, STUCK, Problem
from harness.preflight.verdict import Verdict

_DIRTY, _UNKNOWN, _CLEAN = Verdict.DIRTY, Verdict.UNKNOWN, Verdict.CLEAN


@dataclass(frozen=True)
class Meaning:
    """What an error means.

    Attributes:
        name: Name of the code in ``nvmlReturn_t``, or ours.
        required: Verdict where a start depends on the answer: start-up, handle, memory.
        optional: Verdict where it does not: ECC, clocks, processes, links.
        sentence: What is so.
        next: What to do.
    """

    name: str
    required: Verdict
    optional: Verdict
    sentence: str
    next: str = ""


_AGAIN = "harness preflight again; if it stays, nvidia-smi on the host"
_RESET = "an operator: nvidia-smi --gpu-reset -i INDEX, or a reboot"
_INSTALL = 'pip install "hidden-state-harness[gpu]" into the interpreter that runs harness'

MEANINGS: Final[dict[int, Meaning]] = {
    1: Meaning("UNINITIALIZED", _UNKNOWN, _UNKNOWN, "NVML was not started", _AGAIN),
    2: Meaning(
        "INVALID_ARGUMENT", _UNKNOWN, _CLEAN, "NVML does not know what was asked for", _AGAIN
    ),
    3: Meaning(
        "NOT_SUPPORTED",
        _UNKNOWN,
        _CLEAN,
        "this GPU, or this kind of container, does not tell it",
        "ask on the host: nvidia-smi -q",
    ),
    4: Meaning(
        "NO_PERMISSION",
        _UNKNOWN,
        _CLEAN,
        "this user may not ask it",
        "run it as a user who may open /dev/nvidia*",
    ),
    5: Meaning("ALREADY_INITIALIZED", _UNKNOWN, _CLEAN, "NVML was started twice", _AGAIN),
    6: Meaning("NOT_FOUND", _UNKNOWN, _CLEAN, "NVML does not find it", _AGAIN),
    7: Meaning(
        "INSUFFICIENT_SIZE",
        _UNKNOWN,
        _CLEAN,
        "the answer was larger than NVML's binding had room for",
        "pip install -U nvidia-ml-py",
    ),
    8: Meaning(
        "INSUFFICIENT_POWER",
        _DIRTY,
        _DIRTY,
        "the board's power cables are not connected as they must be",
        "an operator: check the board's power cables",
    ),
    9: Meaning(
        "DRIVER_NOT_LOADED",
        _UNKNOWN,
        _UNKNOWN,
        "the NVIDIA driver is not loaded",
        "an operator: sudo modprobe nvidia",
    ),
    10: Meaning("TIMEOUT", _UNKNOWN, _UNKNOWN, "the driver did not answer in its time", _AGAIN),
    11: Meaning(
        "IRQ_ISSUE",
        _DIRTY,
        _DIRTY,
        "the kernel sees a problem with the GPU's interrupts",
        "an operator: dmesg, then a reboot",
    ),
    12: Meaning(
        "LIBRARY_NOT_FOUND",
        _UNKNOWN,
        _UNKNOWN,
        "libnvidia-ml.so is not here: no driver, or a container that was not given it",
        "where there are GPUs: start the container with them (--gpus all)",
    ),
    13: Meaning(
        "FUNCTION_NOT_FOUND",
        _UNKNOWN,
        _CLEAN,
        "the driver, or NVML's binding, is too old for this question",
        "pip install -U nvidia-ml-py; with an old driver leave the check out",
    ),
    14: Meaning(
        "CORRUPTED_INFOROM",
        _UNKNOWN,
        _UNKNOWN,
        "the board's own memory of its state is corrupted",
        "an operator: the board needs service",
    ),
    15: Meaning(
        "GPU_IS_LOST", _DIRTY, _DIRTY, "the GPU is lost: it fell off the bus", "an operator: reboot"
    ),
    16: Meaning("RESET_REQUIRED", _DIRTY, _DIRTY, "the GPU needs a reset", _RESET),
    17: Meaning(
        "OPERATING_SYSTEM",
        _UNKNOWN,
        _UNKNOWN,
        "the operating system refuses the driver, as a control group may",
        "start the container anew with its GPUs",
    ),
    18: Meaning(
        "LIB_RM_VERSION_MISMATCH",
        _DIRTY,
        _DIRTY,
        "driver and library are of different versions: the driver was upgraded under them",
        "reboot, or reload the nvidia kernel module; a container has to be started anew",
    ),
    19: Meaning("IN_USE", _UNKNOWN, _CLEAN, "the GPU is in use in a way that forbids it", _AGAIN),
    20: Meaning("MEMORY", _UNKNOWN, _UNKNOWN, "the driver has no memory left", "free host memory"),
    21: Meaning("NO_DATA", _UNKNOWN, _CLEAN, "there is nothing to tell", _AGAIN),
    22: Meaning("VGPU_ECC_NOT_SUPPORTED", _UNKNOWN, _CLEAN, "a virtual GPU cannot have ECC on"),
    23: Meaning(
        "INSUFFICIENT_RESOURCES",
        _UNKNOWN,
        _UNKNOWN,
        "the driver has run out of something other than memory",
        _AGAIN,
    ),
    24: Meaning("FREQ_NOT_SUPPORTED", _UNKNOWN, _CLEAN, "the board does not know this clock"),
    25: Meaning(
        "ARGUMENT_VERSION_MISMATCH",
        _UNKNOWN,
        _CLEAN,
        "the driver does not know this form of the question",
        "pip install -U nvidia-ml-py",
    ),
    26: Meaning(
        "DEPRECATED",
        _UNKNOWN,
        _CLEAN,
        "the driver does not answer this question any more",
        "pip install -U nvidia-ml-py",
    ),
    27: Meaning("NOT_READY", _UNKNOWN, _UNKNOWN, "the GPU is not ready yet", _AGAIN),
    28: Meaning("GPU_NOT_FOUND", _DIRTY, _DIRTY, "no GPU is found", "an operator: lspci, dmesg"),
    29: Meaning("INVALID_STATE", _UNKNOWN, _UNKNOWN, "the GPU is in no state to answer", _AGAIN),
    30: Meaning("RESET_TYPE_NOT_SUPPORTED", _UNKNOWN, _CLEAN, "it cannot be reset this way"),
    999: Meaning("UNKNOWN", _UNKNOWN, _UNKNOWN, "the driver fails and does not say why", _AGAIN),
}

_OTHER: Final = Meaning("OTHER", _UNKNOWN, _UNKNOWN, "NVML fails in a way not known here", _AGAIN)
_NO_BINDING: Final = Meaning(
    "NO_BINDING", _UNKNOWN, _UNKNOWN, "nvidia-ml-py is not installed, or broken", _INSTALL
)
_NO_ANSWER: Final = Meaning(
    "NO_ANSWER",
    _UNKNOWN,
    _UNKNOWN,
    "the GPU does not answer",
    f"{_AGAIN}; a driver without persistence mode wakes slowly: nvidia-smi -pm 1",
)
_CRASH: Final = Meaning(
    "CRASH",
    _DIRTY,
    _DIRTY,
    "asking the GPU crashes NVML, as a GPU that fell off the bus does",
    _RESET,
)


def meaning(problem: Problem) -> Meaning:
    """Return what a problem means."""
    if problem.code == BEYOND:
        if problem.query == "binding":
            return _NO_BINDING
        if problem.text.startswith(CRASHED):
            return _CRASH
        if problem.text.startswith(STUCK) or problem.query == "device":
            return _NO_ANSWER
    return MEANINGS.get(problem.code, _OTHER)


def next_step(problem: Problem, index: int | None = None) -> str:
    """Return what to do about a problem, on a device where there is one."""
    return meaning(problem).next.replace("INDEX", "INDEX" if index is None else str(index))
