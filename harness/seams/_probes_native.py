"""Probes of vLLM's own hidden-state capture: method, whitelist and connector."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.seams._bindings import last_name
from harness.seams._classes import Class, Classes
from harness.seams._forms import at, fits, forms
from harness.seams._reading import flow, methods_with, through
from harness.seams._syntax import mentions, method, strings
from harness.seams._walk import returns, statements, walk, walk_with

ABSENT, UNKNOWN = "absent", "unknown"
_CONNECTOR = (
    "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector",
    "ExampleHiddenStatesConnector",
)
_WHITELIST = "aux_hidden_states_supported"


def targets(classes: Classes) -> str:
    """Whose hidden states can be had: ``absent``, ``listed``, ``listed with kimi`` or ``any``."""
    module = classes.tree.module("vllm.config.speculative")
    if module is None or "extract_hidden_states" not in module.text:
        return ABSENT
    if _WHITELIST not in module.text:
        return "any"
    for part in statements(module.tree.body):
        if isinstance(part, ast.Assign) and any(last_name(t) == _WHITELIST for t in part.targets):
            kimi = any("kimi" in text for text in strings(part.value))
            return "listed with kimi" if kimi else "listed"
    return "any"


def write_mode(classes: Classes) -> str:
    """When a sample is written: ``step``, ``step, locked`` or ``finish, locked``."""
    found = classes.find(*_CONNECTOR)
    if found is None:
        return ABSENT
    locked = classes.tree.lookup(found.module, "fcntl") is not None
    if mentions(found.node, "_pending_saves"):
        return "finish, locked" if locked else UNKNOWN
    return "step, locked" if locked else "step"


def writer_rank(classes: Classes) -> str:
    """Which tensor-parallel ranks write: ``0``, ``all`` or ``unknown``."""
    found = classes.find(*_CONNECTOR)
    if found is None:
        return ABSENT
    if not mentions(found.node, _RANK) and not mentions(found.node, _FIRST):
        return "all"
    return "0" if _told_rank(classes, found) and _first_writes(classes) else UNKNOWN


_FIRST, _RANK = "_is_tp_rank_zero", "get_tensor_model_parallel_rank"


def _told_rank(classes: Classes, found: Class) -> bool:
    """Whether the rank is asked for when the caches are registered, and by nobody else."""
    given = flow(classes, _CONNECTOR[0], f"{_CONNECTOR[1]}.register_kv_caches")
    stores = list(given.stored(_FIRST)) if given else []
    others = [
        through(classes, node).stored(_FIRST)
        for node in methods_with(classes, found, f"self.{_FIRST}")
        if node.name not in ("__init__", "register_kv_caches")
    ]
    right = all(
        fits(at(value, point), f"{_RANK}() == 0") and not point.guards for _, value, point in stores
    )
    return bool(stores) and right and not any(list(one) for one in others)


def _first_writes(classes: Classes) -> bool:
    """Whether what is written is handed on only where this is the first rank."""
    write = flow(classes, _CONNECTOR[0], f"{_CONNECTOR[1]}._submit_async_write")
    handed = [point for _, point in write.calls("submit")] if write else []
    return bool(handed) and all(
        any(
            fits(forms(guard.test, guard.env), form) and guard.holds is holds
            for guard in point.guards
            for form, holds in ((f"not self.{_FIRST}", False), (f"self.{_FIRST}", True))
        )
        for point in handed
    )


def layout(classes: Classes) -> str:
    """The cache layout that the connector asks for."""
    node = method(classes, *_CONNECTOR, "get_required_kvcache_layout")
    if node is None:
        return ABSENT if classes.find(*_CONNECTOR) is None else UNKNOWN
    returned = [part.value for part in walk(node) if isinstance(part, ast.Return)]
    named = [value.value for value in returned if isinstance(value, ast.Constant)]
    return str(named[0]) if len(named) == 1 else UNKNOWN


def finished_count(classes: Classes) -> str:
    """Does the connector itself say how many ranks report completion, and that it is one?"""
    found = classes.find(*_CONNECTOR)
    if found is None:
        return ABSENT
    node = method(classes, *_CONNECTOR, "get_finished_count")
    if node is None or "get_finished_count" not in found.names:
        return "inherited"
    told = [part.value for part in returns(node)]
    one = [value.value for value in told if isinstance(value, ast.Constant)]
    return "own" if one == [1] and len(told) == 1 else UNKNOWN


def extra_keys(classes: Classes) -> str:
    """Keys of ``kv_connector_extra_config`` that the connector reads."""
    found = classes.find(*_CONNECTOR)
    if found is None:
        return ABSENT
    return ", ".join(sorted(set(_asked(found)))) or "-"


def request_parameters(classes: Classes) -> str:
    """Keys of a request's ``kv_transfer_params`` that the connector reads."""
    found = classes.find(*_CONNECTOR)
    if found is None:
        return ABSENT
    read = {
        str(part.args[0].value)
        for part in walk_with(found.node, "kv_params")
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr == "get"
        and last_name(part.func.value) == "kv_params"
        and part.args
        and isinstance(part.args[0], ast.Constant)
    }
    return ", ".join(sorted(read)) or "-"


def response_key(classes: Classes) -> str:
    """Key under which a finished request tells its file."""
    node = method(classes, *_CONNECTOR, "request_finished")
    if node is None:
        return ABSENT if classes.find(*_CONNECTOR) is None else UNKNOWN
    keys = {key for part in returns(node) for key in _keys(part)}
    return ", ".join(sorted(keys)) or UNKNOWN


def tensors(classes: Classes) -> str:
    """Names of the tensors in a sample's file."""
    found = classes.find(*_CONNECTOR)
    if found is None:
        return ABSENT
    for part in walk_with(found.node, "tensors"):
        if isinstance(part, ast.Assign) and any(last_name(t) == "tensors" for t in part.targets):
            keys = sorted(_keys(part.value))
            if keys:
                return ", ".join(keys)
    return UNKNOWN


def _keys(node: ast.AST) -> Iterator[str]:
    for part in walk(node):
        if isinstance(part, ast.Dict):
            yield from (str(key.value) for key in part.keys if isinstance(key, ast.Constant))


def _asked(found: Class) -> Iterator[str]:
    for part in walk_with(found.node, "get_from_extra_config"):
        if isinstance(part, ast.Call) and last_name(part.func) == "get_from_extra_config":
            first = part.args[0] if part.args else None
            if isinstance(first, ast.Constant):
                yield str(first.value)


PROBES = {
    "native.targets": targets,
    "native.connector.write": write_mode,
    "native.connector.rank": writer_rank,
    "native.connector.layout": layout,
    "native.connector.finished-count": finished_count,
    "native.connector.extra-keys": extra_keys,
    "native.connector.request-params": request_parameters,
    "native.connector.response-key": response_key,
    "native.connector.tensors": tensors,
}
