"""Classes of a release: bases by name, members with their owners, fields, ``self.x = ...``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from harness.seams._bindings import Bound, Function, bindings, last_name
from harness.seams._later import text_of
from harness.seams._slices import may_store, stored
from harness.seams._tree import Found, Tree
from harness.seams._walk import statements

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Assigning = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.With | ast.AsyncWith


@dataclass(frozen=True)
class Class:
    """A class with what its own body binds.

    Attributes:
        module: Where it is defined.
        node: Its definition.
        names: What its body binds, candidates best first.
    """

    module: str
    node: ast.ClassDef
    names: dict[str, list[Bound]]

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name

    @cached_property
    def methods(self) -> list[Function]:
        """What its body defines, ``__init__`` first."""
        return sorted(_methods(self), key=lambda method: method.name != "__init__")


@dataclass(frozen=True)
class Member:
    """A member of a class and the class that defines it."""

    owner: Class
    value: ast.AST


@dataclass(frozen=True)
class Assignment:
    """An instance attribute: ``self.x = ...`` in a method, or ``self.x: T``.

    Attributes:
        owner: The class whose method assigns it.
        method: That method.
        value: What is assigned first, if anything.
    """

    owner: Class
    method: str
    value: ast.expr | None


@dataclass
class Classes:
    """Reads the classes of one tree."""

    tree: Tree
    _classes: dict[tuple[str, str], Class] = field(default_factory=dict)
    _orders: dict[tuple[str, str], list[Class]] = field(default_factory=dict)
    _assigned: dict[tuple[str, str], dict[Function, dict[str, ast.expr | None]]] = field(
        default_factory=dict
    )
    fields: dict[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)
    """What ``fields_of`` found before: a class is asked for each of its fields."""
    flows: dict[int, Any] = field(default_factory=dict)
    """Functions that ``_flow`` went through before, by the identity of their node."""

    def find(self, module: str, name: str) -> Class | None:
        """Return a class by the name under which a module gives it."""
        return self.of(self.tree.lookup(module, name))

    def of(self, found: Found | None) -> Class | None:
        """Return the class at which a name ended; None where it ended elsewhere."""
        if found is None or not isinstance(found.node, ast.ClassDef):
            return None
        key = (found.module, found.name)
        if key not in self._classes:
            self._classes[key] = Class(found.module, found.node, bindings(found.node.body))
        return self._classes[key]

    def order(self, cls: Class) -> list[Class]:
        """Return the class and its bases inside the package, in method resolution order."""
        key = (cls.module, cls.name)
        if key not in self._orders:
            self._orders[key] = [cls]  # A class that is its own base ends here.
            bases = self.bases(cls)
            merged = _merge([*(self.order(base) for base in bases), bases])
            self._orders[key] = [cls, *merged]
        return self._orders[key]

    def bases(self, cls: Class) -> list[Class]:
        """Return the direct bases that the package defines."""
        found = (self.of(self._base(cls, base)) for base in cls.node.bases)
        return [base for base in found if base is not None]

    def external_bases(self, cls: Class) -> list[str]:
        """Return the names of all bases that other packages define."""
        return [
            last_name(base)
            for one in self.order(cls)
            for base in one.node.bases
            if (found := self._base(one, base)) is None or found.external
        ]

    def member(self, cls: Class, name: str) -> Member | None:
        """Return a member of the class, wherever in its bases it is defined."""
        for one in self.order(cls):
            for bound in one.names.get(name, ()):
                if not bound.typing_only and isinstance(bound.value, ast.AST):
                    return Member(one, bound.value)
        return None

    def assignment(self, cls: Class, attribute: str) -> Assignment | None:
        """Return where an instance attribute is assigned: first in ``__init__``, then anywhere."""
        found = (self._assigned_in(one, attribute) for one in self.order(cls))
        return next((one for one in found if one is not None), None)

    def _assigned_in(self, cls: Class, attribute: str) -> Assignment | None:
        module = self.tree.module(cls.module)
        if module is not None and attribute not in module.text:
            return None
        for method in cls.methods:
            source = text_of(method)
            if source is not None:
                if not may_store(source, attribute):
                    continue
                value = stored(source, attribute)
                if value is not None:
                    return Assignment(cls, method.name, value)
            table = self._stores(cls, method)
            if attribute in table:
                return Assignment(cls, method.name, table[attribute])
        return None

    def _stores(self, cls: Class, method: Function) -> dict[str, ast.expr | None]:
        tables = self._assigned.setdefault((cls.module, cls.name), {})
        if method not in tables:
            table: dict[str, ast.expr | None] = {}
            for name, value in _targets(method):
                table.setdefault(name, value)
            tables[method] = table
        return tables[method]

    def _base(self, cls: Class, base: ast.expr) -> Found | None:
        if isinstance(base, ast.Subscript):
            base = base.value
        if isinstance(base, ast.Name):
            return self.tree.lookup(cls.module, base.id)
        if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
            module = self.tree.lookup(cls.module, base.value.id)
            if module is not None and module.is_module:
                return self.tree.lookup(module.module, base.attr)
            return module if module is not None and module.external else None
        return None


def _merge(orders: list[list[Class]]) -> list[Class]:
    """Merge the orders of the bases as Python does (C3); a broken order is taken as it comes."""
    queues = [list(order) for order in orders if order]
    merged: list[Class] = []
    while queues:
        heads = [queue[0] for queue in queues]
        free = [head for head in heads if not any(_holds(queue[1:], head) for queue in queues)]
        head = (free or heads)[0]
        merged.append(head)
        queues = [[one for one in queue if not _same(one, head)] for queue in queues]
        queues = [queue for queue in queues if queue]
    return merged


def _same(one: Class, other: Class) -> bool:
    return (one.module, one.name) == (other.module, other.name)


def _holds(queue: list[Class], wanted: Class) -> bool:
    return any(_same(one, wanted) for one in queue)


def _methods(cls: Class) -> Iterator[Function]:
    for candidates in cls.names.values():
        for bound in candidates:
            if isinstance(bound.value, _FUNCTIONS):
                yield bound.value


def _targets(method: Function) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield each ``self.x`` that a method assigns, in the order of the text."""
    for node in statements(method.body):
        if not isinstance(node, Assigning):
            continue
        if isinstance(node, ast.With | ast.AsyncWith):
            targets = [item.optional_vars for item in node.items if item.optional_vars]
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for name in _selves(target):
                yield name, getattr(node, "value", None)


def _selves(target: ast.expr) -> Iterator[str]:
    """Yield the names of ``self`` that a target stores into."""
    if isinstance(target, ast.Attribute):
        if isinstance(target.value, ast.Name) and target.value.id == "self":
            yield target.attr
    elif isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _selves(part)
    elif isinstance(target, ast.Starred):
        yield from _selves(target.value)
