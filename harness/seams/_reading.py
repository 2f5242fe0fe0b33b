"""Functions of a release, gone through once, for probes that follow a value."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.seams._bindings import Function
from harness.seams._classes import Class, Classes
from harness.seams._flow import Flow
from harness.seams._later import may_hold
from harness.seams._syntax import function, method

ABSENT, UNKNOWN = "absent", "unknown"


def flow(classes: Classes, module: str, dotted: str) -> Flow | None:
    """Return a function, or a class's method (``Class.method``), gone through; None: no such."""
    cls, _, name = dotted.rpartition(".")
    if not cls:
        node = function(classes, module, name)
    else:
        # What a class defines itself is found without its bases, which are files to read.
        node = _own(classes, module, cls, name) or method(classes, module, cls, name)
    return None if node is None else through(classes, node)


def _own(classes: Classes, module: str, cls: str, name: str) -> Function | None:
    found = classes.find(module, cls)
    for one in found.names.get(name, ()) if found is not None else ():
        if not one.typing_only and isinstance(one.value, ast.FunctionDef | ast.AsyncFunctionDef):
            return one.value
    return None


def through(classes: Classes, node: Function) -> Flow:
    """Return a function gone through; each only once."""
    key = id(node)
    if key not in classes.flows:
        classes.flows[key] = Flow(node)
    found: Flow = classes.flows[key]
    return found


def methods_with(classes: Classes, cls: Class, text: str) -> Iterator[Function]:
    """Yield the methods of a class and its bases in whose lines a text stands."""
    for one in classes.order(cls):
        module = classes.tree.module(one.module)
        places = list(_lines_with(text, module.text)) if module is not None else []
        for node in one.node.body if places else []:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if may_hold(node, text) and any(
                node.lineno <= n <= (node.end_lineno or 0) for n in places
            ):
                yield node


def _lines_with(text: str, source: str) -> Iterator[int]:
    place, line = source.find(text), 1
    before = 0
    while place >= 0:
        line += source.count("\n", before, place)
        yield line
        before, place = place, source.find(text, place + 1)


def is_one_of(words: dict[str, bool]) -> str:
    """Return the only word that holds; ``unknown`` where none does, or more than one."""
    held = [word for word, holds in words.items() if holds]
    return held[0] if len(held) == 1 else UNKNOWN
