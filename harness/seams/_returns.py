"""Shapes of what a function returns, as far as its syntax tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.seams._bindings import Function, last_name
from harness.seams._later import text_of
from harness.seams._slices import returned
from harness.seams._walk import returns

_SHAPES: dict[type[ast.expr], str] = {
    ast.List: "list",
    ast.ListComp: "list",
    ast.Dict: "dict",
    ast.DictComp: "dict",
    ast.Set: "set",
    ast.SetComp: "set",
    ast.GeneratorExp: "generator",
    ast.JoinedStr: "str",
}


def shapes(node: Function) -> str:
    """Return the shapes in alphabetical order, such as ``none|tuple-2``.

    ``value`` is whatever a name, a call or a calculation gives: its shape is not told. A body
    that only raises, and one without ``return``, is ``none``.
    """
    source = text_of(node)
    told = None if source is None else returned(source)
    values = [part.value for part in returns(node)] if told is None else told
    found = {shape for value in values for shape in _of(value)} or {"none"}
    text = "|".join(sorted(found))
    return f"async {text}" if isinstance(node, ast.AsyncFunctionDef) else text


def _of(value: ast.expr | None) -> Iterator[str]:
    if value is None:
        yield "none"
    elif isinstance(value, ast.IfExp):
        yield from _of(value.body)
        yield from _of(value.orelse)
    elif isinstance(value, ast.Tuple):
        yield f"tuple-{len(value.elts)}"
    elif isinstance(value, ast.Constant):
        yield "none" if value.value is None else type(value.value).__name__
    elif isinstance(value, ast.Call) and last_name(value.func) in ("list", "dict", "set", "tuple"):
        yield last_name(value.func)
    else:
        yield _SHAPES.get(type(value), "value")
