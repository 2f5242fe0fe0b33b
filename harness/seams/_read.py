"""Reads the surface of a release: one entry a seam, one value a probe."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from harness.seams import _signature
from harness.seams._bindings import last_name
from harness.seams._classes import Class, Classes
from harness.seams._fields import constructor, fields_of
from harness.seams._open import open_source
from harness.seams._returns import shapes
from harness.seams._source import Named
from harness.seams._tree import Found, Tree
from harness.seams.inventory import SEAMS
from harness.seams.probes import PROBES
from harness.seams.recorded import recorded, spelled
from harness.seams.seam import Kind, Seam
from harness.seams.surface import MISSING, Entry, Surface

_PROPERTIES = ("property", "cached_property")
_RELEASE = re.compile(r"\d+(\.\d+)+\w*")
_LONGEST = 120
"""Characters of a variable's value that are kept."""


def read_surface(
    source: Path | str | Named, *, release: str | None = None, seams: Iterable[Seam] = SEAMS
) -> Surface:
    """Read what a release offers, without installing or importing it.

    Args:
        source: A wheel, a source archive, a folder that holds ``vllm/``, the root or the
            interpreter of an environment, or an opened source.
        release: The version, where the source does not tell it.
        seams: The seams to look at.

    Raises:
        UsageError: ``seams.no-source``, ``seams.no-vllm``, ``seams.broken-archive``.
        NotComparable: ``seams.no-release``, ``seams.no-answer``.
    """
    named = source if isinstance(source, Named) else open_source(source, release=release)
    with _no_collection():
        # All trees are gone before the collector is back, which would walk them once more.
        return _surface(named, tuple(seams))


def _surface(named: Named, seams: Iterable[Seam]) -> Surface:
    tree = Tree(named.source)
    with suppress(SyntaxError, MemoryError, RecursionError):
        surface = _read(named, seams, tree)
        if not tree.broken:
            return surface
    # A part or a method that was put off is no Python, and so its module is none.
    return _read(named, seams, Tree(named.source, whole=True))


def _read(named: Named, seams: Iterable[Seam], tree: Tree) -> Surface:
    classes = Classes(tree)
    surface = Surface(
        release=named.release,
        build=named.build,
        entries={seam.id: read_entry(classes, seam) for seam in seams},
        probes={name: probe(classes) for name, probe in PROBES.items()},
    )
    if tree.unread:
        surface = replace(surface, unread=dict(_unread(classes, seams)))
    return surface


def _unread(classes: Classes, seams: Iterable[Seam]) -> Iterator[tuple[str, str]]:
    """Yield what rests on a module that cannot be read, by asking all once more."""
    tree = classes.tree

    def met(name: str, ask: Callable[[Classes], object]) -> Iterator[tuple[str, str]]:
        tree.met.clear()
        # Nothing that remembers a way through the modules, or what was not found on it.
        ask(Classes(tree, _classes=classes._classes, _assigned=classes._assigned))
        if tree.met:
            first = min(tree.met)
            yield name, f"{first} cannot be read: {tree.unread[first]}"

    for seam in seams:
        yield from met(seam.id, lambda fresh, seam=seam: read_entry(fresh, seam))  # type: ignore[misc]
    for name, probe in PROBES.items():
        yield from met(name, probe)


def surface_of(name: str) -> Surface:
    """Return the surface of a recorded release, or read one from a source.

    Args:
        name: A release, such as ``0.16.0``, or whatever :func:`read_surface` takes; a folder
            that is called as a release is ``./0.16.0``.

    Raises:
        NotComparable: ``seams.no-record``: a release that is not recorded; ``seams.unread``.
        HarnessError: As :func:`read_surface`.
    """
    if spelled(name) or _RELEASE.fullmatch(name):
        return recorded(name)
    return read_surface(name).whole()


def read_entry(classes: Classes, seam: Seam) -> Entry:
    """Look a seam up at each of its paths; the first that is there describes it."""
    found: Entry | None = None
    paths: list[str] = []
    deepest = ""
    for path in seam.paths:
        entry = _at(classes, seam.kind, path)
        if entry.missing:
            deepest = deepest or entry.where
            continue
        paths.append(path)
        found = found or entry
    if found is None:
        return Entry(MISSING, where=deepest)
    return Entry(**{**vars(found), "paths": tuple(paths)})


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the collector: it would walk the syntax trees, which have no cycles, over and over.

    It takes 40 % of the time of reading vLLM 0.32.0.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _at(classes: Classes, kind: Kind, path: str) -> Entry:
    module, _, dotted = path.partition(":")
    if kind is Kind.ENV:
        return _env(classes.tree, module, dotted)
    if classes.tree.module(module) is None:
        return Entry(MISSING, where=_deepest(classes.tree, module))
    if not dotted:
        return Entry("module", where=module)
    name, _, member = dotted.partition(".")
    found = classes.tree.lookup(module, name)
    if found is None:
        return Entry(MISSING, where=module)
    if not member:
        return _top(classes, found)
    cls = classes.find(module, name)
    if cls is None:
        # Another package's class may have any member.
        return Entry("external" if found.external else MISSING, where=found.module)
    return _member(classes, cls, member) or Entry(MISSING, where=f"{cls.module}:{cls.name}")


def _top(classes: Classes, found: Found) -> Entry:
    node = found.node
    if found.is_module:
        return Entry("module", where=found.module)
    cls = classes.of(found)
    if cls is not None:
        return Entry(
            "class",
            where=found.module,
            signature=constructor(classes, cls),
            fields=fields_of(classes, cls),
            bases=tuple(base.name for base in classes.order(cls)[1:]),
        )
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return Entry(
            "function",
            where=found.module,
            signature=_signature.of_function(node),
            returns=shapes(node),
        )
    if node is None:
        return Entry("external", where=found.module)
    return Entry("variable", where=found.module, default=_value(getattr(node, "value", None)))


def _member(classes: Classes, cls: Class, name: str) -> Entry | None:
    for field in fields_of(classes, cls):
        if field.name == name:
            owner = next(one for one in classes.order(cls) if name in one.names)
            return Entry(field.kind, where=owner.module, owner=owner.name, default=field.default)
    member = classes.member(cls, name)
    if member is not None and isinstance(member.value, ast.FunctionDef | ast.AsyncFunctionDef):
        node, owner = member.value, member.owner
        if any(last_name(decorator) in _PROPERTIES for decorator in node.decorator_list):
            return Entry("property", where=owner.module, owner=owner.name)
        text = _signature.of_function(node, bound=True)
        return Entry(
            "method",
            where=owner.module,
            owner=owner.name,
            signature=text,
            returns=shapes(node),
        )
    assigned = classes.assignment(cls, name)
    if assigned is not None:
        return Entry("attribute", where=assigned.owner.module, owner=assigned.owner.name)
    if member is not None:
        value = _value(getattr(member.value, "value", None))
        owner = member.owner
        return Entry("attribute", where=owner.module, owner=owner.name, default=value)
    return None


def _env(tree: Tree, module: str, name: str) -> Entry:
    told = tree.variables(module)
    if told is not None:
        with suppress(LookupError):
            if name not in told.names:
                return Entry(MISSING, where=module)
            return Entry("env", where=module, default=_value(told.default(name)))
    parsed = tree.module(module)
    if parsed is None:
        return Entry(MISSING, where=_deepest(tree, module))
    for bound in parsed.names.get("environment_variables", ()):
        table = getattr(bound.value, "value", None)
        keys = table.keys if isinstance(table, ast.Dict) else []
        if any(isinstance(key, ast.Constant) and key.value == name for key in keys):
            declared = [getattr(b.value, "value", None) for b in parsed.names.get(name, ())]
            return Entry("env", where=module, default=_value(next(iter(declared), None)))
    return Entry(MISSING, where=module)


def _deepest(tree: Tree, module: str) -> str:
    parts = module.split(".")
    while parts and tree.module(".".join(parts)) is None:
        parts.pop()
    return ".".join(parts)


def _value(node: ast.AST | None) -> str | None:
    if node is None:
        return None
    text = ast.unparse(node)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
