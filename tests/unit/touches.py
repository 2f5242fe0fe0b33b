"""Reads with ``ast`` where a Python file touches vLLM; nothing is imported.

Four kinds of touches: names that are imported or named in a text (``vllm.x:Y``), the shapes of
calls to them, members reached through them (enum members, overridden and inherited methods), and
every attribute that is read from an object of which the syntax does not tell the class.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.seams import Call

_DOTTED = re.compile(r"vllm(\.\w+)+")


@dataclass
class Touches:
    """What one file touches.

    Attributes:
        names: ``module``, ``module:Name`` or ``module:Name.member``, with a line.
        calls: ``module:Name`` or ``module:Name.member`` -> shapes; a call with ``*`` or ``**``
            has none.
        attributes: Names read from, or set on, objects of unknown classes, with a line.
        defined: What the file itself defines: functions, methods, classes, fields of classes,
            and attributes of ``self`` that it sets.
    """

    names: dict[str, int] = field(default_factory=dict)
    calls: dict[str, set[Call]] = field(default_factory=dict)
    attributes: dict[str, int] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)


def touches_of(file: Path) -> Touches:
    """Read one file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = Touches()
    imported = dict(_imports(tree))
    texts = _texts(tree)
    for path, line in imported.values():
        if path.split(":")[0].split(".")[0] == "vllm":
            found.names[path] = line
    for node in ast.walk(tree):
        value = _text(node, texts)
        if value is not None and _DOTTED.fullmatch(value):
            found.names.setdefault(value, getattr(node, "lineno", 0))
    _members(tree, imported, found)
    _subclasses(tree, imported, found)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
            found.defined |= {one.id for one in fields if isinstance(one, ast.Name)}
            given = (one.targets[0] for one in node.body if isinstance(one, ast.Assign))
            found.defined |= {one.id for one in given if isinstance(one, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.defined.add(node.name)
        elif isinstance(node, ast.Attribute) and _is_own(node):
            found.defined.add(node.attr)
        elif isinstance(node, ast.Attribute) and _path(node, imported) is None:
            found.attributes.setdefault(node.attr, node.lineno)
        elif isinstance(node, ast.Call) and _is_getattr(node) and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                for part in name.value.split("."):
                    found.attributes.setdefault(part, node.lineno)
    return found


def _is_own(node: ast.Attribute) -> bool:
    """Whether it is set here on ``self``: then this code, not vLLM, has made it."""
    selfish = isinstance(node.value, ast.Name) and node.value.id == "self"
    return selfish and isinstance(node.ctx, ast.Store)


def _is_getattr(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr")


def _imports(tree: ast.Module) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield local name -> (path, line) of every import that runs."""
    for node in _running(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                name = alias.asname or alias.name
                yield name, (f"{node.module}:{alias.name}", node.lineno)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, (alias.name, node.lineno)
                else:
                    yield alias.name.split(".")[0], (alias.name.split(".")[0], node.lineno)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Walk everything but what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _running(child)


def _texts(tree: ast.Module) -> dict[str, str]:
    """Return the text constants of a module, for names that are put together from them."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node):
                text = _text(value, found)
                if text is not None:
                    found[target] = text
    return found


def _pairs(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    target = node.targets[0]
    if isinstance(target, ast.Name):
        yield target.id, node.value
    elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        for one, value in zip(target.elts, node.value.elts, strict=True):
            if isinstance(one, ast.Name):
                yield one.id, value


def _text(node: ast.AST, texts: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return texts.get(node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [
            _text(part.value if isinstance(part, ast.FormattedValue) else part, texts)
            for part in node.values
        ]
        return "".join(part for part in parts if part) if all(parts) else None
    return None


def _path(node: ast.expr, imported: dict[str, tuple[str, int]]) -> str | None:
    """Return the path of a dotted name that begins with an import; None for any other."""
    if isinstance(node, ast.Name):
        return imported[node.id][0] if node.id in imported else None
    if isinstance(node, ast.Attribute):
        base = _path(node.value, imported)
        if base is None:
            return None
        return f"{base}.{node.attr}" if ":" in base else f"{base}:{node.attr}"
    return None


def _members(tree: ast.Module, imported: dict[str, tuple[str, int]], found: Touches) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path = _path(node, imported)
            if path is not None and path.startswith("vllm"):
                found.names.setdefault(path, node.lineno)
        elif isinstance(node, ast.Call):
            path = _path(node.func, imported)
            if path is not None and path.startswith("vllm"):
                _add_call(found, path, node)


def _add_call(found: Touches, path: str, node: ast.Call) -> None:
    shapes = found.calls.setdefault(path, set())
    if any(isinstance(a, ast.Starred) for a in node.args):
        return
    if any(k.arg is None for k in node.keywords):
        return
    names = sorted(k.arg for k in node.keywords if k.arg)
    shapes.add(Call(len(node.args), tuple(names)))


def _subclasses(tree: ast.Module, imported: dict[str, tuple[str, int]], found: Touches) -> None:
    """Of a class that is made from one of vLLM's: what it overrides, inherits and hands up."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [path for base in node.bases if (path := _path(base, imported))]
        base = next((path for path in bases if path.startswith("vllm")), None)
        if base is None:
            continue
        own = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        for part in ast.walk(node):
            if not (isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)):
                continue
            if ast.unparse(part.func.value) == "super()":
                path = base if part.func.attr == "__init__" else f"{base}.{part.func.attr}"
                found.names.setdefault(path, part.lineno)
                _add_call(found, path, part)
        for name in own - {"__init__"}:
            found.names.setdefault(f"{base}.{name}", node.lineno)
