"""Ways through a syntax tree that cost less than ``ast.walk``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from harness.seams._bindings import Function
from harness.seams._later import parse_bodies

LEAVES = frozenset({ast.Name, ast.Constant, ast.Load, ast.Store})
"""Nodes with nothing in them that anybody asks for."""


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and everything in it, in no order; a third of the time of ``ast.walk``.

    Whether a name is read or bound (``ctx``) is left out.
    """
    parse_bodies(node)
    stack = [node]
    while stack:
        part = stack.pop()
        yield part
        if type(part) in LEAVES:
            continue
        for value in vars(part).values():
            if isinstance(value, list):
                stack += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                stack.append(value)


_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def statements(body: list[ast.stmt], *, inner: bool = True) -> Iterator[ast.stmt]:
    """Yield the statements of a body in the order of the text.

    Args:
        body: Where to begin.
        inner: Also those of functions and classes inside it.
    """
    for node in body:
        yield node
        if isinstance(node, _BLOCKS) or (inner and isinstance(node, _DEFINITIONS)):
            for part in _parts(node):
                yield from statements(part, inner=inner)


def _parts(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    yield getattr(node, "body", [])
    for one in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield one.body
    yield getattr(node, "orelse", [])
    yield getattr(node, "finalbody", [])


def returns(node: Function) -> Iterator[ast.Return]:
    """Yield the returns of a function itself, not those of functions inside it."""
    return (one for one in statements(node.body, inner=False) if isinstance(one, ast.Return))
