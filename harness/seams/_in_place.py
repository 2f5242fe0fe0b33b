"""Whether a function changes a value in place, under whatever name it has there.

``_flow`` says of a local name that it was changed; a value may also be reached by an attribute, by
another name, through a view of it, from a loop over it, or in a method that it is handed to.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable

from harness.seams._flow import Flow, Point
from harness.seams._forms import at

_LISTS = frozenset({"reverse", "sort", "insert", "pop", "clear", "extend", "remove"})
_STORE = "copy_"
"""A store, which ``Flow.stored`` gives and each probe holds against what it knows."""
_READS = frozenset(dir(builtins)) | {"cast"}
_HANDS_ON = frozenset({"setattr", "map", "filter"})
_TOLD = frozenset({"debug", "info", "warning", "warning_once", "info_once", "error", "exception"})
_KEPT = frozenset({"append", _STORE})
"""Methods whose argument stays as it is."""
_NO_DATA = r"(?!\w|\.(?:shape|dtype|device|ndim)\b)"
_COUNT = re.compile(r"\.shape(\[-?\d+\])?$")
_THROUGH = ("_each(", "_then(", "(")


def unchanged(
    found: Flow,
    *values: str,
    by: Iterable[str] = (),
    may: Iterable[str] = (),
    own: bool = True,
    stores: bool = True,
    asked: bool = True,
) -> bool:
    """Whether a function leaves values as they are, apart from plain stores into them.

    Args:
        found: The function.
        values: Beginnings of their texts: an argument or an attribute.
        by: Functions and methods that may be handed the values, or are methods of ``self``.
        may: Methods that may change them: the probe looks at each call of these itself.
        asked: Functions that are asked for a result are not known to leave the values alone.
        stores: Whether to look for stores by another name; else the probe knows them all.
        own: Methods of ``self`` other than ``by`` are not known to leave the values alone.
    """
    which = re.compile("|".join(rf"(?<![\w.]){re.escape(one)}{_NO_DATA}" for one in values))
    known, allowed = frozenset(by), frozenset(may)
    for name, call, point in found.every_call():
        if _is_in_place(name) and name not in allowed and _changes(call, point, which):
            return False
        if name in known or name in _TOLD:
            continue
        if own and _is_own(call):
            return False
        dropped = isinstance(point.node, ast.Expr) and point.node.value is call
        looked_at = name in allowed | _KEPT or not (dropped or asked)
        if not looked_at and _handed(name, call, point, which):
            return False
    return not stores or not any(_stores(point, which) for point in found.points)


def _is_in_place(name: str) -> bool:
    if name in _LISTS:
        return True
    return name.endswith("_") and not name.endswith("__") and name != _STORE


def _changes(call: ast.Call, point: Point, which: re.Pattern[str]) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute) and _has(function.value, point, which):
        return True
    return isinstance(function, ast.Attribute) and _given(call, point, which) and _is_module(call)


def _is_module(call: ast.Call) -> bool:
    """Whether a function of torch is called, which changes its argument."""
    function = call.func
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id in ("torch", "F", "nn")


def _handed(name: str, call: ast.Call, point: Point, which: re.Pattern[str]) -> bool:
    """Whether somebody unknown is handed a value, or anything of it where no result is wanted."""
    if isinstance(point.node, ast.Expr) and point.node.value is call:
        return _given(call, point, which)
    if name in _READS or _is_module(call):
        return False
    every = [*call.args, *(one.value for one in call.keywords)]
    return any(_is(one, point, which) for one in every)


def only_reads(name: str, call: ast.Call) -> bool:
    """Whether a call leaves its arguments as they are, and keeps them nowhere."""
    return name in (_READS | _TOLD) - _HANDS_ON or (_is_module(call) and not _is_in_place(name))


def _is_own(call: ast.Call) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "self"
    )


def _given(call: ast.Call, point: Point, which: re.Pattern[str]) -> bool:
    every = [*call.args, *(one.value for one in call.keywords)]
    return any(_has(one, point, which) for one in every)


def _has(node: ast.expr, point: Point, which: re.Pattern[str]) -> bool:
    texts = (one for one in at(node, point) if not _COUNT.search(one))
    return any(which.search(text) for text in texts)


def _stores(point: Point, which: re.Pattern[str]) -> bool:
    """Whether a statement stores into a value by another name, or adds to it where it lies."""
    node = point.node
    if isinstance(node, ast.AugAssign):
        return _is(node.target, point, which)
    if not isinstance(node, ast.Assign):
        return any(_is(one, point, which) for one in _outs(node))
    method = node.value
    if isinstance(method, ast.Attribute) and _is_in_place(method.attr):
        return _is(method.value, point, which)
    for target in (*node.targets, *_outs(node.value)):
        inner = target
        while isinstance(inner, ast.Subscript):
            inner = inner.value
        by_name = isinstance(target, ast.Subscript) and isinstance(inner, ast.Name)
        if (by_name or target not in node.targets) and _is(target, point, which):
            return True
    return False


def _outs(node: ast.AST) -> list[ast.expr]:
    """Return what a call is told to write into."""
    call = node.value if isinstance(node, ast.Expr) else node
    return (
        [one.value for one in call.keywords if one.arg == "out"]
        if (isinstance(call, ast.Call))
        else []
    )


def _is(node: ast.expr, point: Point, which: re.Pattern[str]) -> bool:
    """Whether an expression is a value or a part of it, not something counted from it."""
    for text in at(_read(node), point):
        inner = text
        while start := next((one for one in _THROUGH if inner.startswith(one)), ""):
            inner = inner[len(start) :]
        if which.match(inner) or (inner != text and which.search(inner)):
            return True
    return False


def _read(node: ast.expr) -> ast.expr:
    return ast.Name(node.id, ast.Load()) if isinstance(node, ast.Name) else node
