"""What a name of a module or a class body is bound to, read from its syntax.

A name can be bound more than once: overloads, ``if TYPE_CHECKING``, ``try ... except
ImportError``. The candidates come in the order in which to believe them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


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


def bindings(body: Iterable[ast.stmt]) -> dict[str, list[Bound]]:
    """Return every name that a body binds, each with its candidates, best first."""
    found: dict[str, list[Bound]] = {}
    for name, bound in _walk(body, fallback=False, typing_only=False):
        found.setdefault(name, []).append(bound)
    return {name: _order(candidates) for name, candidates in found.items()}


def stars(body: Iterable[ast.stmt]) -> list[Import]:
    """Return the ``from x import *`` of a module body."""
    return [
        Import(node.level, node.module or "", "*")
        for node in body
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    ]


def _order(candidates: list[Bound]) -> list[Bound]:
    if len(candidates) == 1:
        return candidates
    # Of plain bindings the last one wins; of fallbacks the first that can be had.
    plain = [bound for bound in candidates if not bound.fallback and not bound.typing_only]
    fallback = [bound for bound in candidates if bound.fallback and not bound.typing_only]
    return plain[::-1] + fallback + [bound for bound in candidates if bound.typing_only]


def _walk(
    body: Iterable[ast.stmt], *, fallback: bool, typing_only: bool
) -> Iterator[tuple[str, Bound]]:
    for node in body:
        if isinstance(node, ast.If):
            for_checkers, at_run_time = _typing_branches(node.test)
            yield from _walk(node.body, fallback=fallback, typing_only=typing_only or for_checkers)
            yield from _walk(
                node.orelse,
                fallback=fallback or not for_checkers,
                typing_only=typing_only or at_run_time,
            )
        elif isinstance(node, ast.Try):
            for part in (node.body, node.orelse, node.finalbody):
                yield from _walk(part, fallback=fallback, typing_only=typing_only)
            for handler in node.handlers:
                yield from _walk(handler.body, fallback=True, typing_only=typing_only)
        elif isinstance(node, ast.With):
            yield from _walk(node.body, fallback=fallback, typing_only=typing_only)
        else:
            for name, value in _simple(node):
                yield name, Bound(value, fallback, typing_only)


def _simple(
    node: ast.stmt,
) -> Iterator[tuple[str, ast.ClassDef | Function | ast.Assign | ast.AnnAssign | Import]]:
    if isinstance(node, ast.ClassDef):
        yield node.name, node
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if not _secondary(node):
            yield node.name, node
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            for inner in ast.walk(target):
                if isinstance(inner, ast.Name):
                    yield inner.id, node
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if alias.name != "*":
                given = Import(node.level, node.module or "", alias.name)
                yield alias.asname or alias.name, given
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                yield alias.asname, Import(0, alias.name, None)
            else:
                top = alias.name.split(".")[0]
                yield top, Import(0, top, None)


def _secondary(node: Function) -> bool:
    """Tell overloads, setters and deleters, which are not what a caller reaches first."""
    return any(
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
