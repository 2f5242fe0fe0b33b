"""Where a step's time goes, on the host and on the device; preloaded into the workers by a test.

While the file that ``HARNESS_STEP_PROFILE`` names exists, every step is timed: how long the host is
in each region, how long between two steps, and how long each kernel runs. When it is gone, the
sums of all steps are written beside it, as ``.RANK.json``, one of each rank.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType

ASKED = Path(os.environ["HARNESS_STEP_PROFILE"])
TOP = 40
FIRST = 6  # steps of a batch that are told one by one: while its requests are still coming


class Recorder:
    """Seconds of each region, step by step; and the device's own profile of all steps."""

    def __init__(self) -> None:
        self.on = False
        self._ended = 0.0
        self._steps: list[dict[str, float]] = []
        self._profile: Any = None

    def look(self) -> None:
        """Begin or end, as the file says; called at the start of a step."""
        if ASKED.exists() and not self.on:
            self.on, self._steps, self._ended = True, [], 0.0
            kinds = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                kinds = [torch.profiler.ProfilerActivity.CUDA]
            self._profile = torch.profiler.profile(activities=kinds)
            self._profile.start()
        elif not ASKED.exists() and self.on:
            self.on = False
            self._profile.stop()
            ASKED.with_suffix(f".{rank()}.json").write_text(json.dumps(self.told()))
        if self.on:
            now = time.perf_counter()
            self._steps.append(defaultdict(float))
            if self._ended:
                self._steps[-1]["between steps"] = now - self._ended

    def add(self, region: str, seconds: float, *, aside: bool = False) -> None:
        if self.on and self._steps:
            self._steps[-1][region] += seconds
            if not aside:
                self._ended = time.perf_counter()

    def told(self) -> dict[str, Any]:
        """Milliseconds a step: medians of the host's regions, means of the kernels."""
        steps = self._steps[1:]  # the first one starts the profiler
        regions = {name for step in steps for name in step}
        host = {
            name: round(1e3 * statistics.median(step.get(name, 0.0) for step in steps), 3)
            for name in sorted(regions)
        }
        return {
            "steps": len(steps),
            "host_ms": host,
            "first_steps_ms": [
                {name: round(1e3 * seconds, 1) for name, seconds in sorted(step.items())}
                for step in self._steps[:FIRST]
            ],
            "streams_ms": self._streams(len(steps)),
            "device_ms": self._device(len(steps)),
        }

    def _streams(self, steps: int) -> dict[str, float]:
        """Milliseconds a step that the device works: each stream, any of them, and in all."""
        spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for event in self._profile.events():
            if event.device_type != DeviceType.CPU:
                place = (event.time_range.start, event.time_range.end)
                spans[f"stream {event.device_resource_id}"].append(place)
                spans["any stream"].append(place)
        found = {name: round(covered(places) / 1e3 / steps, 3) for name, places in spans.items()}
        if spans:
            ends = [end for _, end in spans["any stream"]]
            begun = min(start for start, _ in spans["any stream"])
            found["wall"] = round((max(ends) - begun) / 1e3 / steps, 3)
        return found

    def _device(self, steps: int) -> dict[str, float]:
        def spent(event: Any) -> float:
            on_gpu: float = event.self_device_time_total
            return on_gpu or event.self_cpu_time_total

        top = sorted(self._profile.key_averages(), key=spent, reverse=True)[:TOP]
        return {event.key[:120]: round(spent(event) / 1e3 / max(1, steps), 3) for event in top}


def rank() -> int:
    """Return which rank this process is, or its only one."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def covered(places: list[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(places):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


RECORDER = Recorder()


def timed(owner: Any, name: str, region: str, *, begins: bool = False, aside: bool = False) -> None:
    """Count the seconds of a method as a region's; one that begins a step looks at the file.

    One that runs ``aside``, in another thread, is no part of the step's own line of work.
    """
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        if begins:
            RECORDER.look()
        started = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            RECORDER.add(region, time.perf_counter() - started, aside=aside)

    setattr(owner, name, call)


def install() -> None:
    from vllm.v1.core.sched import scheduler
    from vllm.v1.engine import core
    from vllm.v1.worker import gpu_model_runner, gpu_worker

    from harness.inside import patched, spool

    timed(gpu_worker.Worker, "execute_model", "execute_model", begins=True)
    timed(gpu_worker.Worker, "sample_tokens", "sample_tokens")
    runner = gpu_model_runner.GPUModelRunner
    timed(gpu_worker.Worker, "take_draft_token_ids", "take drafts")
    timed(runner, "_model_forward", "forward launched")
    timed(runner, "propose_draft_token_ids", "draft launched")
    timed(runner, "_bookkeeping_sync", "wait for the device")
    timed(runner, "_update_states", "update states")
    timed(runner, "_prepare_inputs", "prepare inputs")
    # In the worker's process only where it is the engine's as well: with one device.
    timed(core.EngineCoreProc, "preprocess_add_request", "requests read", aside=True)
    timed(scheduler.Scheduler, "schedule", "schedule")
    timed(scheduler.Scheduler, "update_from_output", "update from output")
    timed(scheduler.Scheduler, "_connector_finished", "connector finished")
    timed(spool.SpoolWriter, "submit", "spool submit")
    timed(patched.PatchedCapture, "_keep", "patched keep")
    try:
        from harness.inside import connector
    except ImportError:
        return  # a release without native capture
    timed(connector.SpoolConnector, "get_finished", "native get_finished")
    timed(connector.SpoolConnector, "_copy_part", "native copies")
    timed(connector.SpoolConnector, "build_connector_meta", "connector meta")
    timed(connector.SpoolConnector, "start_load_kv", "start load")
