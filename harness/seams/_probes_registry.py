"""Probes of the registry: which module and class vLLM makes of an architecture's name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from harness.seams._classes import Classes
from harness.seams._reading import ABSENT, UNKNOWN
from harness.seams._tree import Module
from harness.seams._walk import walk

_REGISTRY = "vllm.model_executor.models.registry"
_TABLE, _MADE = "_VLLM_MODELS", "ModelRegistry"
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_CHANGES = r"\b(?:{})\s*(?:\[[^\]\n]*\]\s*=(?!=)|\.(?!(?:items|keys|values|get)\b)|\|=)"


def registered(classes: Classes, architecture: str) -> str:
    """Return ``module:class`` of an architecture, as the registry writes it.

    ``absent``: the registry does not know it. ``unknown``: two entries differ, the name stands
    beside the tables as well, or a table is filled in another way than by its literal.
    """
    module = classes.tree.module(_REGISTRY)
    tables = None if module is None else _tables(module)
    if module is None or tables is None:
        return UNKNOWN
    text = _COMMENT.sub("", module.text)
    seen = sum(_is(part, architecture) for table in tables.values() for part in _parts(table))
    written = len(re.findall(rf"""(["']){re.escape(architecture)}\1""", text))
    if written != seen or re.search(_CHANGES.format("|".join(tables)), text):
        return UNKNOWN
    entries = {
        _entry(value)
        for table in tables.values()
        for key, value in zip(table.keys, table.values, strict=True)
        if key is not None and _is(key, architecture)
    }
    return entries.pop() if len(entries) == 1 else UNKNOWN if entries else ABSENT


def _tables(module: Module) -> dict[str, ast.Dict] | None:
    """Return the tables that the registry is made of, by name; None: not all are literals."""
    made = _value(module, _MADE)
    if made is None or not any(_named(part) == _TABLE for part in walk(made)):
        return None
    found: dict[str, ast.Dict] = {}
    wanted = [_TABLE]
    while wanted:
        name = wanted.pop()
        table = _value(module, name)
        if not isinstance(table, ast.Dict):
            return None
        found[name] = table
        parts = list(_spread(table))
        if not all(parts):
            return None
        wanted += [one for one in parts if one not in found]
    return found


def _parts(table: ast.Dict) -> Iterator[ast.AST]:
    """Yield what a table names; an entry's own parts only, of which there are many."""
    for key, value in zip(table.keys, table.values, strict=True):
        if key is None:
            yield from walk(value)
        else:
            yield key
            yield from value.elts if isinstance(value, ast.Tuple) else walk(value)


def _value(module: Module, name: str) -> ast.expr | None:
    """Return what a name of the module is, where one assignment gives it."""
    bound = list(module.names.get(name))
    value = bound[0].value if len(bound) == 1 else None
    return value.value if isinstance(value, ast.Assign | ast.AnnAssign) else None


def _spread(table: ast.Dict) -> Iterator[str]:
    """Yield the tables that a table takes in; "" for anything else that it takes in."""
    for key, value in zip(table.keys, table.values, strict=True):
        if key is None:
            yield _named(value) or _chosen(value)


def _chosen(value: ast.expr) -> str:
    """Return the table of which a comprehension takes some entries, each as it is."""
    loop = value.generators[0] if isinstance(value, ast.DictComp) else None
    if not isinstance(value, ast.DictComp) or loop is None or len(value.generators) != 1:
        return ""
    pair = ast.Tuple([value.key, value.value], ast.Load())
    over = loop.iter
    items = isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute)
    if not items or ast.unparse(pair) != ast.unparse(loop.target):
        return ""
    text = ast.unparse(over)
    return text.removesuffix(".items()") if text.endswith(".items()") else ""


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is(node: ast.AST, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _entry(value: ast.expr) -> str:
    parts = value.elts if isinstance(value, ast.Tuple) else []
    named = [one.value for one in parts if isinstance(one, ast.Constant)]
    return ":".join(map(str, named)) if len(parts) == len(named) == 2 else UNKNOWN


PROBES = {
    "registry.deepseek-v2": partial(registered, architecture="DeepseekV2ForCausalLM"),
    "registry.deepseek-v3": partial(registered, architecture="DeepseekV3ForCausalLM"),
    "registry.kimi": partial(registered, architecture="KimiK25ForConditionalGeneration"),
}
