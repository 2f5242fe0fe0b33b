"""Asynchronous scheduling: off, and seen to be off."""

from __future__ import annotations

import inspect
from typing import Any

from harness.errors import Refused
from harness.patches._judge import ask, binds, by_probe, by_signature
from harness.patches._modules import GENERATOR
from harness.patches._patch import Change, Patch, Process
from harness.patches._state import State, needed, obsolete
from harness.seams import Call

_CALL = Call(
    keywords=(
        "model_config",
        "cache_config",
        "parallel_config",
        "scheduler_config",
        "device_config",
        "load_config",
    )
)


def _rule(signature: inspect.Signature) -> State:
    return binds(signature, _CALL, "on where nobody says no")


def _make(original: Any) -> Any:
    ask(_rule, original)

    def vllm_config(**arguments: Any) -> Any:
        scheduler = arguments["scheduler_config"]
        if not hasattr(scheduler, "async_scheduling"):
            raise _not_off("SchedulerConfig has no async_scheduling")
        scheduler.async_scheduling = False
        config = original(**arguments)
        if config.scheduler_config.async_scheduling:
            raise _not_off("vLLM turned it on")
        return config

    return vllm_config


def _not_off(found: str) -> Refused:
    return Refused(
        "patches.async-scheduling",
        expected="asynchronous scheduling off, as asked",
        found=found,
        where="VllmConfig.scheduler_config.async_scheduling",
        next="use a release on which it can be turned off: harness patches check",
    )


PATCH = Patch(
    id="async-scheduling",
    process=Process.CONTROLLER,
    seam="config.vllm",
    module=GENERATOR,
    changes=(Change("VllmConfig", _make),),
    summary="Turns asynchronous scheduling off before vLLM decides, and looks again afterwards.",
    fault="workers send their reply from another thread and CUDA stream, which does not wait for "
    "the rows to be computed: wrong rows of the right shape (GPU only)",
    silent=True,
    judge=by_probe(
        "async-scheduling.default",
        {"on": needed("on by default, off CPU"), "off": obsolete("off by default")},
        also=by_signature("config.vllm", _rule),
    ),
    releases=">=0.14",
    retire_when="speculators' in-process generator is no longer used",
    upstream="vLLM 0.14.0, vllm/config/vllm.py",
)
