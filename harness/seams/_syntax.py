"""Questions to a definition's syntax, for probes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from harness.seams._bindings import Function
from harness.seams._classes import Classes
from harness.seams._later import text_of
from harness.seams._slices import given
from harness.seams._walk import statements, walk, walk_with


def method(classes: Classes, module: str, cls: str, name: str) -> Function | None:
    """Return a method's definition, inherited or not; None where there is none."""
    found = classes.find(module, cls)
    member = None if found is None else classes.member(found, name)
    node = None if member is None else member.value
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def function(classes: Classes, module: str, name: str) -> Function | None:
    """Return a function's definition, followed through re-exports."""
    found = classes.tree.lookup(module, name)
    node = None if found is None else found.node
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None


def holds(node: ast.AST, test: Callable[[ast.AST], bool]) -> bool:
    """Whether any part of a definition passes a test."""
    return any(test(part) for part in walk(node))


def mentions(node: ast.AST, name: str) -> bool:
    """Whether a definition uses a name: variable, attribute, argument or text."""
    return any(
        (isinstance(part, ast.Name) and part.id == name)
        or (isinstance(part, ast.Attribute) and part.attr == name)
        or (isinstance(part, ast.Constant) and part.value == name)
        for part in walk_with(node, name)
    )


def assigned(body: list[ast.stmt], attribute: str) -> Iterator[ast.expr]:
    """Yield what a body assigns to an attribute of that name, of any object."""
    for node in body:
        source = text_of(node)
        told = None if source is None else given(source, attribute)
        yield from _assigned([node], attribute) if told is None else told


def _assigned(body: list[ast.stmt], attribute: str) -> Iterator[ast.expr]:
    for part in statements(body):
        if isinstance(part, ast.Assign):
            for target in part.targets:
                if isinstance(target, ast.Attribute) and target.attr == attribute:
                    yield part.value


def strings(node: ast.AST) -> Iterator[str]:
    """Yield the string constants of a definition."""
    for part in walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def is_constant(node: ast.AST, value: object) -> bool:
    """Whether a node is this very constant."""
    return isinstance(node, ast.Constant) and node.value is value
