"""Signatures as text: ``(a, b=None, *, c)``, without annotations, and back."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from functools import cache

from harness.seams._bindings import Function, last_name

_PARAMETER = inspect.Parameter


def of_function(node: Function, *, bound: bool = False) -> str:
    """Return a function's signature.

    Args:
        node: Its definition.
        bound: Leave out the first parameter of a method, unless it is static.
    """
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    defaults += args.defaults
    pairs = list(zip(positional, defaults, strict=True))
    only = len(args.posonlyargs)
    if bound and pairs and not is_static(node):
        pairs, only = pairs[1:], max(0, only - 1)
    parts = [_text(argument.arg, default) for argument, default in pairs]
    if only:
        parts.insert(only, "/")
    if args.vararg:
        parts.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        parts.append("*")
    parts += [
        _text(argument.arg, default)
        for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg:
        parts.append(f"**{args.kwarg.arg}")
    return f"({', '.join(parts)})"


def is_static(node: Function) -> bool:
    """Whether a function of a class takes neither ``self`` nor the class."""
    return any(last_name(decorator) == "staticmethod" for decorator in node.decorator_list)


def of_parts(positional: Sequence[str], keyword_only: Sequence[str]) -> str:
    """Return a signature of ``name`` or ``name=default`` parts."""
    parts = [*positional, *(["*", *keyword_only] if keyword_only else [])]
    return f"({', '.join(parts)})"


@cache
def parse(text: str) -> inspect.Signature:
    """Return the signature that a text stands for; defaults stay source text."""
    node = ast.parse(f"def f{text}: ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    defaults += args.defaults
    found = [
        _parameter(
            argument.arg,
            _PARAMETER.POSITIONAL_ONLY
            if number < len(args.posonlyargs)
            else _PARAMETER.POSITIONAL_OR_KEYWORD,
            default,
        )
        for number, (argument, default) in enumerate(zip(positional, defaults, strict=True))
    ]
    if args.vararg:
        found.append(_parameter(args.vararg.arg, _PARAMETER.VAR_POSITIONAL, None))
    found += [
        _parameter(argument.arg, _PARAMETER.KEYWORD_ONLY, default)
        for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg:
        found.append(_parameter(args.kwarg.arg, _PARAMETER.VAR_KEYWORD, None))
    return inspect.Signature(found)


def _parameter(
    name: str, kind: inspect._ParameterKind, default: ast.expr | None
) -> inspect.Parameter:
    if default is None:
        return _PARAMETER(name, kind)
    return _PARAMETER(name, kind, default=ast.unparse(default))


def _text(name: str, default: ast.expr | None) -> str:
    return name if default is None else f"{name}={ast.unparse(default)}"
