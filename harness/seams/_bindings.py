"""What a name of a module or a class body is bound to, read from its syntax.

A name can be bound more than once: overloads, ``if TYPE_CHECKING``, ``try ... except
ImportError``. The candidates come in the order in which to believe them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Import(NamedTuple):
    """A name that another module gives.

    Attributes:
        level: Leading dots of a relative import.
        module: Its module, as written.
        name: The name there; None for ``import module``.
    """

    level: int
    module: str
    name: str | None


class Bound(NamedTuple):
    """One binding of a name.

    Attributes:
        value: The definition, assignment or import.
        fallback: It stands in an ``else`` or ``except``: believed after the others.
        typing_only: It exists for type checkers alone.
    """

    value: ast.ClassDef | Function | ast.Assign | ast.AnnAssign | Import
    fallback: bool = False
    typing_only: bool = False


# Thousands are made for a release, in a third of the time of a call by their names.
_bound: Callable[[tuple[object, bool, bool]], Bound] = partial(tuple.__new__, Bound)
_import: Callable[[tuple[int, str, str | None]], Import] = partial(tuple.__new__, Import)


def bindings(body: Iterable[ast.stmt]) -> dict[str, list[Bound]]:
    """Return every name that a body binds, each with its candidates, best first."""
    found: dict[str, list[Bound]] = {}
    _collect(body, found, fallback=False, typing_only=False)
    for name, candidates in found.items():
        if len(candidates) > 1:
            found[name] = _order(candidates)
    return found


def stars(body: Iterable[ast.stmt]) -> list[Import]:
    """Return the ``from x import *`` of a module body."""
    return [
        Import(node.level, node.module or "", "*")
        for node in body
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    ]


def _order(candidates: list[Bound]) -> list[Bound]:
    # Of plain bindings the last one wins; of fallbacks the first that can be had.
    plain = [bound for bound in candidates if not bound.fallback and not bound.typing_only]
    fallback = [bound for bound in candidates if bound.fallback and not bound.typing_only]
    return plain[::-1] + fallback + [bound for bound in candidates if bound.typing_only]


def _collect(
    body: Iterable[ast.stmt], found: dict[str, list[Bound]], *, fallback: bool, typing_only: bool
) -> None:
    for node in body:
        if isinstance(node, ast.If):
            for_checkers, at_run_time = _typing_branches(node.test)
            unsure, unseen = fallback or not for_checkers, typing_only or at_run_time
            checked = typing_only or for_checkers
            _collect(node.body, found, fallback=fallback, typing_only=checked)
            _collect(node.orelse, found, fallback=unsure, typing_only=unseen)
        elif isinstance(node, ast.Try):
            for part in (node.body, node.orelse, node.finalbody):
                _collect(part, found, fallback=fallback, typing_only=typing_only)
            for handler in node.handlers:
                _collect(handler.body, found, fallback=True, typing_only=typing_only)
        elif isinstance(node, ast.With):
            _collect(node.body, found, fallback=fallback, typing_only=typing_only)
        else:
            for name, value in _simple(node):
                bound = _bound((value, fallback, typing_only))
                if name in found:
                    found[name].append(bound)
                else:
                    found[name] = [bound]


def _simple(
    node: ast.stmt,
) -> Sequence[tuple[str, ast.ClassDef | Function | ast.Assign | ast.AnnAssign | Import]]:
    if isinstance(node, _DEFINITIONS):
        return () if node.decorator_list and _secondary(node) else ((node.name, node),)
    if isinstance(node, ast.AnnAssign):
        return ((node.target.id, node),) if isinstance(node.target, ast.Name) else ()
    if isinstance(node, ast.Assign):
        parts = [part for target in node.targets for part in ast.walk(target)]
        return [(part.id, node) for part in parts if isinstance(part, ast.Name)]
    if isinstance(node, ast.ImportFrom):
        level, module = node.level, node.module or ""
        return [
            (alias.asname or alias.name, _import((level, module, alias.name)))
            for alias in node.names
            if alias.name != "*"
        ]
    if isinstance(node, ast.Import):
        return [
            (alias.asname, Import(0, alias.name, None))
            if alias.asname
            else (top, Import(0, top, None))
            for alias in node.names
            for top in [alias.name.split(".")[0]]
        ]
    return ()


def _secondary(node: Function | ast.ClassDef) -> bool:
    """Tell overloads, setters and deleters, which are not what a caller reaches first."""
    return not isinstance(node, ast.ClassDef) and any(
        last_name(decorator) in ("overload", "setter", "deleter")
        for decorator in node.decorator_list
    )


def _typing_branches(test: ast.expr) -> tuple[bool, bool]:
    """Say whether the body, and whether the else, of an ``if`` is for type checkers only."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return (False, last_name(test.operand) == "TYPE_CHECKING")
    return (last_name(test) == "TYPE_CHECKING", False)


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name, a call's or a subscript's; empty for others."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
