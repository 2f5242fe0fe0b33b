"""Names of a release, followed through its re-exports; nothing is imported."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from harness.seams._bindings import Bound, Function, Import, stars
from harness.seams._envs import Variables
from harness.seams._parts import Names
from harness.seams._source import PACKAGE, Source

_DEEPEST = 12
"""Re-exports followed before a circle is assumed."""


@dataclass(frozen=True)
class Module:
    """One parsed module.

    Attributes:
        name: Dotted name.
        is_package: Whether its file is an ``__init__.py``.
        names: What it binds, candidates best first.
        stars: Its star imports.
        text: Its source.
    """

    name: str
    is_package: bool
    names: Names
    stars: tuple[Import, ...]
    text: str

    @property
    def tree(self) -> ast.Module:
        """Its syntax, all of it.

        Raises:
            SyntaxError: A part that nobody asked for is no Python.
        """
        return self.names.tree

    def may_give(self, name: str) -> bool:
        """Whether its ``__getattr__`` may give a name that only type checkers see bound.

        Such a function looks names up among the module's text constants.
        """
        return "__getattr__" in self.names and (
            f'"{name}"' in self.text or f"'{name}'" in self.text
        )


@dataclass(frozen=True)
class Found:
    """Where a name ends.

    Attributes:
        module: The module that defines it; outside the package for ``node`` None.
        name: Its name there.
        node: Its definition; None for another package's or a module.
        is_module: Whether the name is a module.
    """

    module: str
    name: str
    node: ast.ClassDef | Function | ast.Assign | ast.AnnAssign | None = None
    is_module: bool = False

    @property
    def external(self) -> bool:
        """Whether another package defines it."""
        return self.module.split(".")[0] != PACKAGE


@dataclass
class Tree:
    """The modules of one release, parsed when first asked for.

    Attributes:
        source: Its files.
        whole: Parse each module at once and not in parts.
        unread: Modules that are there and cannot be read, with the reason.
        met: Those of them that were asked for.
    """

    source: Source
    whole: bool = False
    _cache: dict[str, Module | None] = field(default_factory=dict)
    _variables: dict[str, Variables | None] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    met: set[str] = field(default_factory=set)

    def module(self, name: str) -> Module | None:
        """Return a module of the package, or None where there is none (or it is no Python)."""
        if name not in self._cache:
            self._cache[name] = self._parse(name)
        found = self._cache[name]
        if found is None and name in self.unread:
            self.met.add(name)
        return found

    @property
    def broken(self) -> bool:
        """Whether a part of a module turned out to be no Python."""
        return any(one is not None and one.names.broken for one in self._cache.values())

    def lookup(self, module: str, name: str) -> Found | None:
        """Follow a module's name to its definition; None where it cannot be imported."""
        return self._lookup(module, name, frozenset())

    def variables(self, name: str) -> Variables | None:
        """Return a module's table of environment variables; None where it must be parsed."""
        if name not in self._variables:
            _, text = (False, None) if self.whole else self._text(name)
            self._variables[name] = None if text is None else Variables.of(text)
        return self._variables[name]

    def _text(self, name: str) -> tuple[bool, str | None]:
        """Return whether a module is a package, and its source."""
        path = name.replace(".", "/")
        text = self.source.read(f"{path}/__init__.py")
        return (False, self.source.read(f"{path}.py")) if text is None else (True, text)

    def _parse(self, name: str) -> Module | None:
        is_package, text = self._text(name)
        if text is None:
            return None
        try:
            names = Names.of(text, whole=self.whole)
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            # Another Python's syntax, or an expression nested too deep for the parser.
            said = getattr(error, "msg", None) or str(error) or type(error).__name__
            self.unread[name] = f"{said}, line {line}" if (line := _line(error)) else said
            return None
        return Module(name, is_package, names, tuple(stars(names.rest.body)), text)

    def _lookup(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> Found | None:
        if (module, name) in seen or len(seen) > _DEEPEST:
            return None
        seen |= {(module, name)}
        parsed = self.module(module)
        if parsed is None:
            return None
        for bound in parsed.names.get(name, ()):
            if bound.typing_only and not parsed.may_give(name):
                continue
            found = self._follow(parsed, name, bound, seen)
            if found is not None:
                return found
        for star in parsed.stars:
            target = absolute(parsed, star)
            if target.split(".")[0] == PACKAGE and (found := self._lookup(target, name, seen)):
                return found
        if self.module(f"{module}.{name}") is not None:
            return Found(f"{module}.{name}", "", is_module=True)
        return None

    def _follow(
        self, parsed: Module, name: str, bound: Bound, seen: frozenset[tuple[str, str]]
    ) -> Found | None:
        value = bound.value
        if isinstance(value, Import):
            target = absolute(parsed, value)
            if target.split(".")[0] != PACKAGE:
                return Found(target, value.name or "")
            if value.name is None:
                return Found(target, "", is_module=True) if self.module(target) else None
            return self._lookup(target, value.name, seen)
        alias = value.value if isinstance(value, ast.Assign | ast.AnnAssign) else None
        if isinstance(alias, ast.Name) and alias.id in parsed.names:
            return self._lookup(parsed.name, alias.id, seen) or Found(parsed.name, name, value)
        return Found(parsed.name, name, value)


def _line(error: Exception) -> int | None:
    line = getattr(error, "lineno", None)
    return line if isinstance(line, int) else None


def absolute(module: Module, given: Import) -> str:
    """Return the full name of the module that an import names."""
    if given.level == 0:
        return given.module
    parts = module.name.split(".")
    base = parts[: len(parts) - given.level + (1 if module.is_package else 0)]
    return ".".join([*base, *filter(None, [given.module])])
