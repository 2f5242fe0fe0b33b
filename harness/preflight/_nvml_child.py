"""Ask NVML, in a process of its own: ``python -P _nvml_child.py OPTIONS``.

A driver in trouble hangs or crashes whoever asks it, so this is asked and nothing else is. It
is started by path, takes its options as one JSON object, prints one JSON object a line, and
imports the standard library and ``pynvml`` only. Each device is asked by a thread of its own:
one that does not answer must not hide the others.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

FUNCTION_NOT_FOUND = 13
BEYOND = -1
TOLERANCE = 8 << 20
"""Bytes by which a settled device may still move between samples: the driver's own bookkeeping."""

_NOT_SUPPORTED, _LOST, _RESET = 3, 15, 16
_UNCORRECTED, _VOLATILE = 1, 0
_MOST_LINKS = 18
_READ = 0  # NVML_P2P_CAPS_INDEX_READ, which the binding defines as a tuple
_PDEATHSIG = 1

Emit = Callable[[dict[str, Any]], None]


class Asked:
    """Queries to one device, or to the system, and what they did not answer."""

    def __init__(self) -> None:
        self.problems: list[dict[str, Any]] = []

    def __call__(self, query: str, call: Callable[[], Any]) -> Any:
        """Return what a call returns; None, and a problem, where it fails."""
        try:
            return call()
        except Exception as error:  # any: one query must not stop the others
            self.problems.append(problem(query, error))
            return None

    def gone(self) -> bool:
        """Whether the device does not answer at all any more."""
        return any(known["code"] in (_LOST, _RESET) for known in self.problems)


def problem(query: str, error: BaseException) -> dict[str, Any]:
    """Describe an error as a fact."""
    if isinstance(error, AttributeError):
        code = FUNCTION_NOT_FOUND  # an older binding has no such function at all
    else:
        code = getattr(error, "value", BEYOND)
    text = str(error) or type(error).__name__
    return {"query": query, "code": code if isinstance(code, int) else BEYOND, "text": text}


def read(
    nvml: Any,
    emit: Emit,
    options: dict[str, Any],
    clock: Any = time,
    cuda: Callable[[], dict[str, Any]] | None = None,
) -> None:
    """Ask everything and emit it.

    Args:
        nvml: The binding.
        emit: Takes one event.
        options: ``samples``, ``interval``, ``settle`` and ``wait`` (seconds), ``floor`` (bytes),
            ``limit`` (seconds for all devices together), ``skip`` (indexes), ``careful`` (one
            device after the other), ``brief`` (names only), ``cuda``.
        clock: ``monotonic`` and ``sleep``.
        cuda: Initialises CUDA.
    """
    try:
        nvml.nvmlInit()
    except Exception as error:
        emit({"event": "failed", **problem("init", error)})
        return
    asked = Asked()
    count = asked("count", nvml.nvmlDeviceGetCount)
    emit(
        {
            "event": "system",
            "count": count,
            "driver": _text(asked("driver", nvml.nvmlSystemGetDriverVersion)),
            "cuda": asked("cuda", lambda: nvml.nvmlSystemGetCudaDriverVersion()),
            "problems": asked.problems,
        }
    )
    indexes = [index for index in range(count or 0) if index not in options["skip"]]
    handles: dict[int, Any] = {}
    settled = _devices(nvml, emit, options, clock, indexes, handles)
    if not options["brief"]:
        good = {index: handles[index] for index in indexes if handles.get(index) is not None}
        if settled:
            emit({"event": "peers", "pairs": _peers(nvml, good)})
        if options["cuda"]:
            emit({"event": "cuda", **(cuda or _cuda)()})
    emit({"event": "end"})


def _devices(
    nvml: Any,
    emit: Emit,
    options: dict[str, Any],
    clock: Any,
    indexes: list[int],
    handles: dict[int, Any],
) -> bool:
    def one(index: int) -> None:
        emit({"event": "at", "index": index})
        handles[index] = _device(nvml, index, emit, options, clock)
        emit({"event": "done", "index": index})

    if options["careful"]:
        for index in indexes:
            one(index)
        return True
    threads = [threading.Thread(target=one, args=(index,), daemon=True) for index in indexes]
    for thread in threads:
        thread.start()
    until = time.monotonic() + options["limit"]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _device(nvml: Any, index: int, emit: Emit, options: dict[str, Any], clock: Any) -> Any:
    asked = Asked()
    handle = asked("handle", lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    facts: dict[str, Any] = {"event": "device", "index": index, "problems": asked.problems}
    if handle is not None:
        facts["name"] = _text(asked("name", lambda: nvml.nvmlDeviceGetName(handle)))
        facts["uuid"] = _text(asked("uuid", lambda: nvml.nvmlDeviceGetUUID(handle)))
    emit(facts)
    if handle is None:
        return None
    slices = _slices(nvml, handle, Asked(), emit, index)
    if options["brief"]:
        return handle
    _samples(nvml, handle, slices, index, emit, options, clock)
    emit({"event": "health", "index": index, **_health(nvml, handle)})
    return handle


def _samples(
    nvml: Any,
    handle: Any,
    slices: list[Any],
    index: int,
    emit: Emit,
    options: dict[str, Any],
    clock: Any,
) -> None:
    """Sample memory and holders until memory rests, or the time for that is over."""
    values: list[int] = []
    started = clock.monotonic()
    while True:
        asked = Asked()
        memory = _memory(nvml, handle, asked)
        emit(
            {
                "event": "sample",
                "index": index,
                "at": clock.monotonic() - started,
                "memory": memory,
                "slices": [_memory(nvml, part, Asked()) for part in slices],
                "holders": _holders(nvml, [handle, *slices], asked),
                "problems": asked.problems,
            }
        )
        if memory is None:
            return
        values.append(memory["used"])
        last = values[-options["samples"] :]
        rests = len(last) == options["samples"] and max(last) - min(last) <= TOLERANCE
        if rests and (not options["wait"] or values[-1] <= options["floor"]):
            return
        if clock.monotonic() - started >= max(options["settle"], options["wait"]):
            return
        clock.sleep(options["interval"])


def _memory(nvml: Any, handle: Any, asked: Asked) -> dict[str, Any] | None:
    try:
        found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return {"total": found.total, "used": found.used, "reserved": found.reserved}
    except Exception:  # an older driver or binding: the older question, with the reserved part
        found = asked("memory", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return found and {"total": found.total, "used": found.used, "reserved": None}


def _holders(nvml: Any, handles: list[Any], asked: Asked) -> list[list[Any]]:
    found: dict[tuple[int, str], int | None] = {}
    for handle in handles:
        for kind, name in (
            ("compute", "nvmlDeviceGetComputeRunningProcesses"),
            ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
            ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
        ):
            query = f"{kind} processes"
            for entry in asked(query, partial(_call, nvml, name, handle)) or ():
                found[entry.pid, kind] = entry.usedGpuMemory
    return [[pid, kind, used] for (pid, kind), used in found.items()]


def _slices(nvml: Any, handle: Any, asked: Asked, emit: Emit, index: int) -> list[Any]:
    mode = asked("mig", lambda: nvml.nvmlDeviceGetMigMode(handle))
    handles: list[Any] = []
    uuids: list[str] = []
    if mode and mode[0]:
        most = asked("mig count", lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0
        for number in range(most):
            # Numbers without a slice are not found, which is no problem.
            part = Asked()(
                "mig slice",
                partial(_call, nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number),
            )
            if part is not None:
                handles.append(part)
                uuids.append(
                    _text(asked("mig uuid", partial(_call, nvml, "nvmlDeviceGetUUID", part)))
                )
    event = {"event": "mig", "index": index, "mode": mode and list(mode), "uuids": uuids}
    emit({**event, "problems": asked.problems})
    return handles


def _health(nvml: Any, handle: Any) -> dict[str, Any]:
    asked = Asked()
    rows = asked("remapped rows", lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    pages = None
    if rows is None:  # before Ampere, whole pages were retired instead
        pages = asked("retired pages", lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    facts = {
        "uncorrected": asked(
            "ecc", lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, _UNCORRECTED, _VOLATILE)
        ),
        "remap_pending": bool(rows[2]) if rows else None if pages is None else bool(pages),
        "remap_failed": bool(rows[3]) if rows else None,
        "throttle": asked("clocks", lambda: _throttle(nvml, handle)),
        "compute_mode": asked("compute mode", lambda: nvml.nvmlDeviceGetComputeMode(handle)),
        "bus": _text(asked("bus", lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)),
        "minor": asked("minor", lambda: nvml.nvmlDeviceGetMinorNumber(handle)),
    }
    state, status = asked("fabric", lambda: _fabric(nvml, handle)) or (None, None)
    links = _links(nvml, handle, asked)
    return {
        **facts,
        "fabric_state": state,
        "fabric_status": status,
        "links_active": sum(links) if links else None,
        "links_known": len(links) or None,
        # No problem where it is not told: MIG slices have none.
        "busy": Asked()("busy", lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        "problems": asked.problems,
    }


def _throttle(nvml: Any, handle: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except Exception as error:
        if problem("", error)["code"] != FUNCTION_NOT_FOUND:
            raise
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))  # before R535


def _fabric(nvml: Any, handle: Any) -> tuple[int, int]:
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return int(info.state), int(info.status)


def _links(nvml: Any, handle: Any, asked: Asked) -> list[int]:
    found: list[int] = []
    for link in range(_MOST_LINKS):
        try:
            found.append(int(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except Exception as error:
            if link == 0:
                asked.problems.append(problem("nvlink", error))
            break  # numbers behind the last link are invalid
    return found


def _peers(nvml: Any, handles: dict[int, Any]) -> list[list[int]]:
    pairs = []
    for one in handles:
        for other in (index for index in handles if index > one):
            status = Asked()(
                "peer",
                partial(_call, nvml, "nvmlDeviceGetP2PStatus", handles[one], handles[other], _READ),
            )
            if status is not None:
                pairs.append([one, other, int(status)])
    return pairs


def _cuda() -> dict[str, Any]:
    """Initialise CUDA without a context: NVML may be fine where this is not."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        code = int(library.cuInit(0))
        count = ctypes.c_int(-1)
        if code == 0:
            library.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError) as error:
        return {"code": None, "count": None, "text": str(error)}
    return {"code": code, "count": count.value if code == 0 else None, "text": ""}


def _call(nvml: Any, name: str, *args: Any) -> Any:
    """Look a function up as late as it is called: an older binding may not have it."""
    return getattr(nvml, name)(*args)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _contain(limit: float, parent: int) -> None:
    """Leave no core dump, no process behind a vanished parent, and none that hangs for ever."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit)
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)  # it has gone before we could ask to be told


def main() -> None:
    """Read the options, ask, and end without waiting for threads that hang."""
    options = json.loads(sys.argv[1])
    _contain(options["alive"], options["parent"])
    # What a library prints must not stand between our lines.
    out = os.dup(1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def emit(event: dict[str, Any]) -> None:
        with lock:
            os.write(out, json.dumps(event).encode() + b"\n")

    try:
        with warnings.catch_warnings():
            # An older package of the same module name warns at import.
            warnings.simplefilter("ignore")
            nvml = importlib.import_module("pynvml")
    except Exception as error:  # missing, or broken in any way
        emit({"event": "failed", **problem("binding", error), "code": BEYOND})
    else:
        read(nvml, emit, options)
    os._exit(0)


if __name__ == "__main__":
    main()
