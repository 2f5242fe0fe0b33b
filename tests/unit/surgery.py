"""Edits of a Python source by the names in it: what an upgrade may do to a release."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

Edit = Callable[[str], str]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def find(text: str, name: str) -> ast.stmt:
    """Return the definition or the annotated field of a dotted name; the last one wins."""
    body: list[ast.stmt] = ast.parse(text).body
    node: ast.stmt | None = None
    for part in name.split("."):
        named = [one for one in _flat(body) if _name(one) == part]
        assert named, f"no {name}"
        node = named[-1]
        body = getattr(node, "body", [])
    assert node is not None
    return node


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for one in body:
        found.append(one)
        if isinstance(one, ast.If | ast.Try):
            found += _flat(one.body) + _flat(one.orelse)
    return found


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return getattr(node, "name", "")


def _function(text: str, name: str) -> Function:
    node = find(text, name)
    assert isinstance(node, Function)
    return node


def _cut(text: str, node: ast.AST, new: str, *, first: int | None = None) -> str:
    """Replace a node's text; ``first``: from that line on."""
    lines = text.splitlines(keepends=True)
    start, end = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    head = lines[start].encode()[: node.col_offset].decode()  # type: ignore[attr-defined]
    tail = lines[end].encode()[node.end_col_offset :].decode()  # type: ignore[attr-defined]
    if first is not None:
        start, head = first, ""
    return "".join([*lines[:start], head + new + tail, *lines[end + 1 :]])


def _signature(node: Function, args: ast.arguments, text: str) -> str:
    """Put other arguments into a function's head."""
    made = ast.unparse(args)
    source = ast.get_source_segment(text, node)
    assert source is not None
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    head = f"{word} {node.name}({made}):\n"
    lines = text.splitlines(keepends=True)
    body = "".join(lines[node.body[0].lineno - 1 : node.end_lineno])
    if node.body[0].lineno == node.lineno:
        body = " " * (node.col_offset + 4) + ast.unparse(node.body[0]) + "\n"
    indent = " " * node.col_offset
    return "".join([*lines[: node.lineno - 1], indent, head, body, *lines[node.end_lineno :]])


def rename(name: str, new: str) -> Edit:
    """Give a definition or field another name, and its uses in that file too."""
    old = name.rpartition(".")[2]

    def edit(text: str) -> str:
        find(text, name)
        return re.sub(rf"\b{old}\b", new, text)

    return edit


def rename_only(name: str, new: str) -> Edit:
    """Give one definition another name."""

    def edit(text: str) -> str:
        node = find(text, name)
        lines = text.splitlines(keepends=True)
        at = node.lineno - 1
        lines[at] = re.sub(rf"\b{name.rpartition('.')[2]}\b", new, lines[at], count=1)
        return "".join(lines)

    return edit


def drop(name: str) -> Edit:
    """Take a definition or field away."""

    def edit(text: str) -> str:
        node = find(text, name)
        lines = text.splitlines(keepends=True)
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)]) - 1
        return "".join(
            [*lines[:first], " " * node.col_offset + "pass\n", *lines[node.end_lineno :]]
        )

    return edit


def add_argument(
    name: str, argument: str, default: str | None = None, *, first: bool = False
) -> Edit:
    """Give a function one more argument: by name at the end, or right behind ``self``."""

    def edit(text: str) -> str:
        node = _function(text, name)
        args, made = node.args, ast.arg(argument)
        value = None if default is None else ast.parse(default, mode="eval").body
        if first:
            args.args.insert(1 if args.args and args.args[0].arg in ("self", "cls") else 0, made)
        else:
            args.kwonlyargs.append(made)
            args.kw_defaults.append(value)
        return _signature(node, args, text)

    return edit


def drop_argument(name: str, argument: str) -> Edit:
    """Take an argument away."""

    def edit(text: str) -> str:
        node = _function(text, name)
        args = node.args
        if argument in [one.arg for one in args.kwonlyargs]:
            at = [one.arg for one in args.kwonlyargs].index(argument)
            del args.kwonlyargs[at], args.kw_defaults[at]
            return _signature(node, args, text)
        at = [one.arg for one in args.args].index(argument)
        from_end = len(args.args) - at
        if from_end <= len(args.defaults):
            del args.defaults[len(args.defaults) - from_end]
        del args.args[at]
        return _signature(node, args, text)

    return edit


def rename_argument(name: str, argument: str, new: str) -> Edit:
    """Give an argument another name; the body is left as it is."""

    def edit(text: str) -> str:
        node = _function(text, name)
        every = [*node.args.args, *node.args.kwonlyargs]
        next(one for one in every if one.arg == argument).arg = new
        return _signature(node, node.args, text)

    return edit


def swap_arguments(name: str, one: str, other: str) -> Edit:
    """Let two arguments change places."""

    def edit(text: str) -> str:
        node = _function(text, name)
        names = [arg.arg for arg in node.args.args]
        a, b = names.index(one), names.index(other)
        node.args.args[a], node.args.args[b] = node.args.args[b], node.args.args[a]
        return _signature(node, node.args, text)

    return edit


def make_keyword_only(name: str) -> Edit:
    """Let a function take all its arguments by name alone."""

    def edit(text: str) -> str:
        node = _function(text, name)
        args = node.args
        keep = 1 if args.args and args.args[0].arg in ("self", "cls") else 0
        moved = args.args[keep:]
        pad: list[ast.expr | None] = [None] * (len(moved) - len(args.defaults))
        args.kwonlyargs = moved + args.kwonlyargs
        args.kw_defaults = [*pad, *args.defaults, *args.kw_defaults]
        args.args, args.defaults = args.args[:keep], []
        return _signature(node, args, text)

    return edit


def set_field(name: str, default: str | None) -> Edit:
    """Give a field of a data class another default; None: required."""

    def edit(text: str) -> str:
        node = find(text, name)
        assert isinstance(node, ast.AnnAssign)
        value = "" if default is None else f" = {default}"
        made = f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}{value}"
        return _cut(text, node, made)

    return edit


def set_default(name: str, argument: str, default: str) -> Edit:
    """Give an argument another default."""

    def edit(text: str) -> str:
        node = _function(text, name)
        args, value = node.args, ast.parse(default, mode="eval").body
        names = [one.arg for one in args.args]
        if argument in names:
            args.defaults[names.index(argument) - len(names) + len(args.defaults)] = value
        else:
            args.kw_defaults[[one.arg for one in args.kwonlyargs].index(argument)] = value
        return _signature(node, args, text)

    return edit


def add_to(name: str, statement: str, *, last: bool = False) -> Edit:
    """Put a line first (behind the text of documentation) or last into a class or function."""

    def edit(text: str) -> str:
        node = find(text, name)
        body: list[ast.stmt] = node.body  # type: ignore[attr-defined]
        lines = text.splitlines(keepends=True)
        indent = " " * body[0].col_offset
        documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        at = body[-1].end_lineno if last else body[0].end_lineno if documented else None
        if at is None:
            decorators = getattr(body[0], "decorator_list", [])
            at = min([body[0].lineno, *(one.lineno for one in decorators)]) - 1
        made = "".join(f"{indent}{line}\n" for line in statement.splitlines())
        return "".join([*lines[:at], made, *lines[at:]])

    return edit


def returns(name: str, value: str) -> Edit:
    """Let each ``return`` of a function give something else."""

    def edit(text: str) -> str:
        node = _function(text, name)
        found = [one for one in ast.walk(node) if isinstance(one, ast.Return) and one.value]
        assert found, f"{name} returns nothing"
        for one in sorted(found, key=lambda one: -one.lineno):
            text = _cut(text, one, f"return {value}")
        return text

    return edit


def replaced(old: str, new: str) -> Edit:
    """Replace a text, which must be there."""

    def edit(text: str) -> str:
        assert old in text, f"no {old!r}"
        return text.replace(old, new)

    return edit
