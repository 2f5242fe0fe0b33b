"""Whether the states that the model captured can be reached from beside the way of a row.

On that way a local name of ``execute_model`` holds them, then the runner's kept state, then a
local name of ``sample_tokens``. A method that is called on the runner alone, or a function inside,
changes them only where it finds them elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.seams._classes import Class, Classes
from harness.seams._flow import Flow, Point
from harness.seams._forms import at, fits
from harness.seams._in_place import only_reads, unchanged
from harness.seams._later import text_of
from harness.seams._reading import methods_with, through
from harness.seams._runner import KEPT
from harness.seams._walk import statements, walk

_RUN_NAME = "_model_forward"
_RUN = f"self.{_RUN_NAME}(ANY)"
CAPTURED = (f"{_RUN}[1]", f"{_RUN}[1][ANY]", f"_each({_RUN}[1])")
"""What the model captured, as ``execute_model`` has it."""
_KEEPS = "ExecuteModelState"
_RUNS = ("self.model(", "self._model_forward(")
_ON_THE_WAY = frozenset({"__init__", "execute_model", "sample_tokens"})
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def handed_on(ran: Flow) -> bool:
    """Whether ``execute_model`` gives the captured states to anybody but the kept state."""
    names = _names(ran)
    for name, call, point in ran.every_call():
        every = [*call.args, *(one.value for one in call.keywords)]
        given = (one for one in every if names.may_have(one))
        apart = name == _KEEPS or only_reads(name, call)
        if not apart and any(_is(one, point, CAPTURED) for one in given):
            return True
    return any(names.may_have(one) and _is(one, point, CAPTURED) for one, point in _kept(ran))


def stored(found: Flow, *forms: str) -> bool:
    """Whether a value becomes an attribute, where other methods find it."""
    return any(_is(one, point, forms) for one, point in _kept(found))


def _kept(found: Flow) -> Iterator[tuple[ast.expr, Point]]:
    for point in found.points:
        node = point.node
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) for t in node.targets):
            yield node.value, point


def used_inside(ran: Flow) -> bool:
    """Whether a function inside ``execute_model`` uses a name that has the captured states."""
    text = text_of(ran.node) or ""
    if text.count("def ") == 1 and "lambda" not in text:
        return False
    names = _names(ran).captured
    inner = (one for one in walk(ran.node) if isinstance(one, _INNER) and one is not ran.node)
    return any(_mentions(one, names) for one in inner)


def kept_apart(classes: Classes, runner: Class) -> bool:
    """Whether no other method of the runner changes the kept state, or replaces it."""
    return all(
        node.name in _ON_THE_WAY
        or (
            unchanged(through(classes, node), KEPT, own=False)
            and not any(True for _ in through(classes, node).stored(KEPT.partition(".")[2]))
        )
        for node in methods_with(classes, runner, KEPT)
    )


def run_again(classes: Classes, runner: Class, *after: Flow) -> bool:
    """Whether the model runs once more on the way: what it captured may lie in the same place."""
    names = {node.name for word in _RUNS for node in methods_with(classes, runner, word)}
    return any(True for found in after for name in names for _ in found.calls(name))


@dataclass
class _Names:
    """Local names of ``execute_model``.

    Attributes:
        captured: Those that may have anything of what the model captured.
        whole: Those that may have all that it gave.
    """

    captured: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=lambda: {_RUN_NAME})

    def may_have(self, value: ast.expr) -> bool:
        """Whether there may be anything of what the model captured in a value."""
        return _mentions(value, self.captured) or any(
            isinstance(part, ast.Subscript)
            and isinstance(part.slice, ast.Constant)
            and _mentions(part.value, self.whole)
            for part in walk(value)
        )


def _names(ran: Flow) -> _Names:
    names = _Names()
    for node in statements(ran.node.body):
        value: ast.expr | None = getattr(node, "iter", None) or getattr(node, "value", None)
        for part in walk(value) if value is not None else ():
            if isinstance(part, ast.comprehension) and names.may_have(part.iter):
                names.captured |= _bound(part.target)
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        for target in targets:
            if value is None or target is None:
                continue
            if names.may_have(value):
                names.captured |= _bound(target)
            elif _mentions(value, names.whole):
                parts = target.elts[1:] if isinstance(target, ast.Tuple) else []
                names.captured |= {name for part in parts for name in _bound(part)}
                names.whole |= _bound(target) - names.captured
    return names


def _bound(target: ast.AST) -> set[str]:
    return {part.id for part in walk(target) if isinstance(part, ast.Name)}


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(
        (part.id if isinstance(part, ast.Name) else part.attr) in names
        for part in walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    )


def _is(node: ast.expr, point: Point, forms: tuple[str, ...]) -> bool:
    return any(fits([text], *forms) for text in at(node, point))
