"""Fields of data classes and the constructors made from them.

Read for ``dataclass``, pydantic's ``dataclass`` and ``BaseModel``, vLLM's own ``@config`` (its
spelling changed in 0.16.0 from ``@config @dataclass`` to ``@config``), ``msgspec.Struct``,
``NamedTuple`` and enums.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from harness.seams import _signature
from harness.seams._bindings import last_name
from harness.seams._classes import Class, Classes
from harness.seams._walk import walk_with

FieldKind = Literal["field", "initvar", "noinit", "member"]

_DECORATORS = ("dataclass", "config", "pydantic_dataclass")
_GENERATING_BASES = ("BaseModel", "Struct", "NamedTuple", "TypedDict")
_ENUMS = ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")
_EMPTY_BASES = ("object", "ABC", "Generic", "Protocol")
_SPECIFIERS = ("field", "Field", "PydanticField")


@dataclass(frozen=True)
class Field:
    """One field of a data class, or one member of an enum.

    Attributes:
        name: Its name.
        default: Source text of its default, unwrapped from ``Field(...)``; None: required.
        kind: ``initvar`` reaches only the constructor, ``noinit`` only the instance.
        keyword_only: The constructor takes it by name alone.
    """

    name: str
    default: str | None = None
    kind: FieldKind = "field"
    keyword_only: bool = False


def fields_of(classes: Classes, cls: Class) -> tuple[Field, ...]:
    """Return the fields of a data class or the members of an enum; inherited ones first."""
    key = (cls.module, cls.name)
    if key not in classes.fields:
        classes.fields[key] = _fields_of(classes, cls)
    return classes.fields[key]


def _fields_of(classes: Classes, cls: Class) -> tuple[Field, ...]:
    external = classes.external_bases(cls)
    if any(name in _ENUMS for name in external):
        return tuple(_members(classes, cls))
    generating = any(name in _GENERATING_BASES for name in external)
    found: dict[str, Field] = {}
    for one in reversed(classes.order(cls)):
        if generating or _generated(classes, one):
            by_name = _keyword_only(one) or "BaseModel" in external
            found |= {field.name: field for field in _own(one, by_name)}
    return tuple(found.values())


def constructor(classes: Classes, cls: Class) -> str | None:
    """Return the signature of a class's call; None where the syntax does not tell it."""
    external = classes.external_bases(cls)
    if any(name in _ENUMS for name in external):
        return "(value)"
    for one in classes.order(cls):
        own = next((bound.value for bound in one.names.get("__init__", ())), None)
        if isinstance(own, ast.FunctionDef):
            return _signature.of_function(own, bound=True)
        if "__new__" in one.names:
            return None
        if _generated(classes, one):
            return of_fields(fields_of(classes, one))
    if any(name in _GENERATING_BASES for name in external):
        return of_fields(fields_of(classes, cls))
    return "()" if all(name in _EMPTY_BASES for name in external) else None


def of_fields(fields: tuple[Field, ...]) -> str:
    """Return the constructor's signature that fields make."""
    positional: list[str] = []
    by_name: list[str] = []
    has_default = False
    for field in fields:
        if field.kind not in ("field", "initvar"):
            continue
        text = field.name if field.default is None else f"{field.name}={field.default}"
        # No call can leave out a default before a required field, so the order ends there.
        if field.keyword_only or by_name or (has_default and field.default is None):
            by_name.append(text)
        else:
            positional.append(text)
            has_default = has_default or field.default is not None
    return _signature.of_parts(positional, by_name)


def _own(cls: Class, keyword_only: bool) -> Iterator[Field]:
    for name, candidates in cls.names.items():
        node = candidates[0].value
        if not isinstance(node, ast.AnnAssign):
            continue
        annotation = _annotation(node.annotation)
        if annotation == "KW_ONLY":
            keyword_only = True
        elif annotation != "ClassVar":
            field = _field(name, node.value)
            if annotation == "InitVar":
                field = replace(field, kind="initvar")
            if keyword_only and not field.keyword_only:
                field = replace(field, keyword_only=True)
            yield field


def _annotation(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return ""
    return last_name(node)


def _field(name: str, value: ast.expr | None) -> Field:
    if value is None:
        return Field(name)
    if not isinstance(value, ast.Call) or last_name(value.func) not in _SPECIFIERS:
        return Field(name, ast.unparse(value))
    given = {keyword.arg: keyword.value for keyword in value.keywords}
    default = given.get("default", value.args[0] if value.args else None)
    text = None if default is None or _is_ellipsis(default) else ast.unparse(default)
    factory = given.get("default_factory")
    if isinstance(factory, ast.Lambda):
        text = ast.unparse(factory.body)
    elif factory is not None:
        text = f"{ast.unparse(factory)}()"
    kind: FieldKind = "noinit" if _is(given.get("init"), False) else "field"
    return Field(name, text, kind, _is(given.get("kw_only"), True))


def _members(classes: Classes, cls: Class) -> Iterator[Field]:
    for one in reversed(classes.order(cls)):
        for name, candidates in one.names.items():
            node = candidates[0].value
            if isinstance(node, ast.Assign) and not name.startswith("_"):
                yield Field(name, ast.unparse(node.value), "member")


def _generated(classes: Classes, cls: Class) -> bool:
    """Whether a decorator makes the class's constructor from its fields."""
    for decorator in cls.node.decorator_list:
        keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
        if any(keyword.arg == "init" and _is(keyword.value, False) for keyword in keywords):
            continue
        name = last_name(decorator)
        if name in _DECORATORS:
            return True
        found = classes.tree.lookup(cls.module, name)
        if found is not None and isinstance(found.node, ast.FunctionDef):
            inner = walk_with(found.node, "dataclass")
            if any(isinstance(n, ast.expr) and last_name(n).startswith("dataclass") for n in inner):
                return True
    return False


def _keyword_only(cls: Class) -> bool:
    given = list(cls.node.keywords)
    for decorator in cls.node.decorator_list:
        given += decorator.keywords if isinstance(decorator, ast.Call) else []
    return any(keyword.arg == "kw_only" and _is(keyword.value, True) for keyword in given)


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
