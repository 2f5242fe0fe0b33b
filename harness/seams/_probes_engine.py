"""Probes of configuration, scheduler, executor and model runner."""

from __future__ import annotations

import ast
import re

from harness.seams._bindings import last_name
from harness.seams._classes import Classes
from harness.seams._fields import fields_of
from harness.seams._syntax import (
    assigned,
    function,
    holds,
    is_constant,
    mentions,
    method,
)
from harness.seams._syntax import strings as strings_of
from harness.seams._walk import returns, walk

ABSENT, UNKNOWN = "absent", "unknown"
EXTENSION = (
    "hs_capture",
    "hs_pause",
    "hs_held",
    "hs_describe",
    "hs_arm",
    "hs_disarm",
    "hs_compare",
    "hs_logprobs",
    "_capturing",
    "_setup_hidden_states_capture",
    "_reset_capture",
    "_get_captured_states",
    "_store_captured_states",
)
"""Names of the extensions of ``harness.inside.worker`` and of speculators 0.3 and 0.4."""
_RUNNER = ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner")
_EXECUTOR = ("vllm.v1.executor.multiproc_executor", "MultiprocExecutor")
_SETS_SIZE = re.compile(r"\.block_size\s*=(?!=)")
_SORTED = re.compile(r"sorted(?<!\wsorted)\(\s*[\w.]*num_\w*tokens")
_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
_LISTED = "DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES"


def two_phase(classes: Classes) -> str:
    """Does ``execute_model`` keep its result and return None, for ``sample_tokens`` to fetch?"""
    node = method(classes, *_RUNNER, "execute_model")
    if node is None:
        return UNKNOWN
    kept = [v for v in assigned(node.body, "execute_model_state") if not is_constant(v, None)]
    if not kept:
        return "no" if method(classes, *_RUNNER, "sample_tokens") is None else UNKNOWN
    last = node.body[-1]
    ends = isinstance(last, ast.Return) and (last.value is None or is_constant(last.value, None))
    return "yes" if ends else UNKNOWN


def reentry_guard(classes: Classes) -> str:
    """Does a second ``execute_model`` without ``sample_tokens`` between raise?"""
    node = method(classes, *_RUNNER, "execute_model")
    if node is None:
        return UNKNOWN
    raises = [part for part in walk(node) if isinstance(part, ast.Raise)]
    guarded = any("sample_tokens" in text for part in raises for text in strings_of(part))
    return "raises" if guarded else "none"


def single_reply(classes: Classes) -> str:
    """Is the reply of one rank bare, or a list of one?"""
    node = method(classes, *_EXECUTOR, "collective_rpc")
    if node is None or not any(
        argument.arg == "unique_reply_rank" for argument in [*node.args.args, *node.args.kwonlyargs]
    ):
        return UNKNOWN
    bare = holds(
        node,
        lambda part: (
            isinstance(part, ast.IfExp)
            and isinstance(part.body, ast.Subscript)
            and holds(part.test, lambda inner: is_constant(inner, None))
        ),
    )
    if bare:
        return "bare"
    # The list that is filled reply by reply, and given as it is.
    given = {last_name(part.value) for part in returns(node) if part.value is not None}
    filled = {
        last_name(part.func.value)
        for part in walk(node)
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr == "append"
    }
    return "list" if given and given <= filled | {"result"} else UNKNOWN


def async_scheduling(classes: Classes) -> str:
    """Is asynchronous scheduling on where nobody says anything?"""
    default = _default(classes, "SchedulerConfig", "async_scheduling")
    if default == "False":
        return "off"
    found = classes.find("vllm.config", "VllmConfig")
    if default != "None" or found is None:
        return UNKNOWN
    turned_on = any(is_constant(v, True) for v in assigned(found.node.body, "async_scheduling"))
    return "on" if turned_on else UNKNOWN


def prefix_caching(classes: Classes) -> str:
    """The default of ``CacheConfig.enable_prefix_caching``."""
    return _default(classes, "CacheConfig", "enable_prefix_caching")


def memory_utilisation(classes: Classes) -> str:
    """The default of ``CacheConfig.gpu_memory_utilization``."""
    return _default(classes, "CacheConfig", "gpu_memory_utilization")


def required_by_scheduler(classes: Classes) -> str:
    """Which arguments ``SchedulerConfig`` cannot do without; ``-`` for none."""
    found = classes.find("vllm.config", "SchedulerConfig")
    if found is None:
        return UNKNOWN
    needed = [
        field.name
        for field in fields_of(classes, found)
        if field.default is None and field.kind in ("field", "initvar")
    ]
    return ", ".join(sorted(needed)) or "-"


def warms_up(classes: Classes) -> str:
    """Does the executor's ``initialize_from_config`` also warm up?"""
    node = method(classes, *_EXECUTOR, "initialize_from_config")
    if node is None:
        return UNKNOWN
    if mentions(node, "compile_or_warm_up_model"):
        return "yes"
    called = [part for part in walk(node) if isinstance(part, ast.Call)]
    asks = [part for part in called if last_name(part.func) == "collective_rpc"]
    told = {text for part in asks for text in strings_of(part)}
    return "no" if told == {"initialize_from_config"} and len(called) == 1 else UNKNOWN


def current_config(classes: Classes) -> str:
    """What does ``get_current_vllm_config`` do outside a context: ``warns`` or ``raises``?"""
    node = function(classes, "vllm.config", "get_current_vllm_config")
    if node is None:
        return UNKNOWN
    if holds(node, lambda part: isinstance(part, ast.Raise)):
        return "raises"
    if holds(node, lambda part: isinstance(part, ast.Assert)):
        return UNKNOWN
    return "warns" if mentions(node, "warning") else UNKNOWN


def runner_v2(classes: Classes) -> str:
    """Who gets model runner V2: nobody, who asks (``opt-in``), ``listed`` models or ``all``?"""
    if classes.tree.module("vllm.v1.worker.gpu.model_runner") is None:
        return ABSENT
    config = classes.find("vllm.config", "VllmConfig")
    if config is None:
        return UNKNOWN
    if classes.member(config, "use_v2_model_runner") is None:
        return "opt-in"
    if _v2_list(classes) is not None:
        return "listed"
    node = method(classes, "vllm.config", "VllmConfig", "use_v2_model_runner")
    last = node.body[-1] if node is not None else None
    if isinstance(last, ast.Return) and last.value is not None and is_constant(last.value, True):
        return "all"
    return UNKNOWN


def runner_v2_opt_out(classes: Classes) -> str:
    """Is ``VLLM_USE_V2_MODEL_RUNNER`` heard, so that V1 can be had?"""
    if classes.tree.module("vllm.v1.worker.gpu.model_runner") is None:
        return ABSENT
    if classes.find("vllm.config", "VllmConfig") is None:
        return UNKNOWN
    node = method(classes, "vllm.config", "VllmConfig", "use_v2_model_runner")
    if node is not None:
        return "yes" if mentions(node, _VARIABLE) else UNKNOWN
    module = classes.tree.module("vllm.envs")
    return "yes" if module is not None and mentions(module.tree, _VARIABLE) else UNKNOWN


def runner_v2_sorts(classes: Classes) -> str:
    """Does V2 order a batch by how many tokens each request is given?"""
    module = classes.tree.module("vllm.v1.worker.gpu.model_runner")
    if module is None:
        return ABSENT
    return "yes" if _SORTED.search(module.text) else UNKNOWN


def runner_v2_deepseek(classes: Classes) -> str:
    """Is V2 the default for ``DeepseekV2ForCausalLM``?"""
    return _v2_default(classes, "DeepseekV2ForCausalLM")


def runner_v2_kimi(classes: Classes) -> str:
    """Is V2 the default for ``KimiK25ForConditionalGeneration``?"""
    return _v2_default(classes, "KimiK25ForConditionalGeneration")


def worker_extension(classes: Classes) -> str:
    """Is ``worker_extension_cls`` mixed in by ``__bases__``?"""
    for module in ("vllm.v1.worker.worker_base", "vllm.worker.worker_base"):
        node = method(classes, module, "WorkerWrapperBase", "init_worker")
        if node is not None:
            return "bases" if mentions(node, "__bases__") else UNKNOWN
    return UNKNOWN


def extension_collisions(classes: Classes) -> str:
    """Which names of a worker extension the worker has already; vLLM asserts that there is none."""
    worker = classes.find("vllm.v1.worker.gpu_worker", "Worker")
    if worker is None:
        return UNKNOWN
    held = {name for one in classes.order(worker) for name in one.names}
    met = [n for n in EXTENSION if n in held or classes.assignment(worker, n) is not None]
    return ", ".join(met) or "-"


def chunked_prefill(classes: Classes) -> str:
    """The default of ``SchedulerConfig.enable_chunked_prefill``."""
    return _default(classes, "SchedulerConfig", "enable_chunked_prefill")


def block_hashes(classes: Classes) -> str:
    """Does caching a full block assert that the request has hashes?"""
    node = method(classes, "vllm.v1.core.block_pool", "BlockPool", "cache_full_blocks")
    if node is None:
        return UNKNOWN
    if not mentions(node, "block_hashes"):
        return UNKNOWN
    asserts = (part for part in walk(node) if isinstance(part, ast.Assert))
    return "yes" if any(mentions(part, "block_hashes") for part in asserts) else "no"


def mla_block_size(classes: Classes) -> str:
    """Does the CUDA platform overwrite a chosen block size for latent attention?"""
    module = classes.tree.module("vllm.platforms.cuda")
    if module is None:
        return UNKNOWN
    if not _SETS_SIZE.search(module.text):
        return "no"
    given = list(assigned(module.tree.body, "block_size"))
    sizes = [value.value for value in given if isinstance(value, ast.Constant)]
    if 64 in sizes or 128 in sizes:
        return "yes"
    return "no" if not given else UNKNOWN


def _default(classes: Classes, cls: str, name: str) -> str:
    found = classes.find("vllm.config", cls)
    fields = fields_of(classes, found) if found else ()
    return next((field.default or "required" for field in fields if field.name == name), ABSENT)


def _v2_list(classes: Classes) -> frozenset[str] | None:
    found = classes.tree.lookup("vllm.config.vllm", _LISTED)
    return frozenset(strings_of(found.node)) if found is not None and found.node else None


def _v2_default(classes: Classes, architecture: str) -> str:
    state = runner_v2(classes)
    if state == "listed":
        return "yes" if architecture in (_v2_list(classes) or ()) else "no"
    return {"all": "yes", UNKNOWN: UNKNOWN}.get(state, "no")


PROBES = {
    "execute-model.two-phase": two_phase,
    "execute-model.reentry-guard": reentry_guard,
    "collective-rpc.single-reply": single_reply,
    "async-scheduling.default": async_scheduling,
    "prefix-caching.default": prefix_caching,
    "gpu-memory-utilization.default": memory_utilisation,
    "scheduler-config.required": required_by_scheduler,
    "initialize-from-config.warms-up": warms_up,
    "current-config.unset": current_config,
    "runner-v2.default-for": runner_v2,
    "runner-v2.deepseek": runner_v2_deepseek,
    "runner-v2.kimi": runner_v2_kimi,
    "runner-v2.opt-out": runner_v2_opt_out,
    "runner-v2.sorts-rows": runner_v2_sorts,
    "worker-extension.mixed-in": worker_extension,
    "worker-extension.collisions": extension_collisions,
    "chunked-prefill.default": chunked_prefill,
    "block-hashes.asserted": block_hashes,
    "mla-block-size.overwritten": mla_block_size,
}
