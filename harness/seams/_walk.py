"""Ways through a syntax tree that cost less than ``ast.walk``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.seams._bindings import Function


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and everything in it, in no order; half the time of ``ast.walk``."""
    stack = [node]
    while stack:
        part = stack.pop()
        yield part
        for value in vars(part).values():
            if isinstance(value, list):
                stack += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                stack.append(value)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, inner ones too, in the order of the text."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, part, []))
        for inner in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from statements(inner.body)


def returns(node: Function) -> Iterator[ast.Return]:
    """Yield the returns of a function itself, not those of functions inside it."""
    stack: list[ast.AST] = list(node.body)
    while stack:
        part = stack.pop()
        if isinstance(part, ast.Return):
            yield part
        elif isinstance(part, ast.stmt | ast.excepthandler | ast.match_case) and not isinstance(
            part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            stack += ast.iter_child_nodes(part)
