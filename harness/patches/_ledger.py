"""Which names are replaced, by whom, and what was there before."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.errors import Refused

_MARK = "__harness_replaced__"
"""Attribute of a module: name -> :class:`_Entry`. It lives and dies with the module."""

_ABSENT: Any = object()


@dataclass(frozen=True)
class _Entry:
    by: str
    original: Any
    replacement: Any


def replace(
    module: Any, name: str, make: Callable[[Any], Any], *, by: str, adds: bool = False
) -> None:
    """Put a replacement in the place of a name of a module.

    Raises:
        Refused: ``patches.conflict`` or ``patches.missing-anchor``.
    """
    _no_conflict(module, name, by)
    first, _, member = name.partition(".")
    found = getattr(module, first, _ABSENT)
    if found is _ABSENT and not adds:
        raise _other_shape(module, name, by, f"no {first} in it")
    if not member:
        replacement = make(None if found is _ABSENT else found)
        setattr(module, first, replacement)
        _entries(module)[name] = _Entry(by, found, replacement)
        return
    if not isinstance(found, type) or not hasattr(found, member):
        raise _other_shape(module, name, by, f"no {member} in {first}")
    replacement = make(getattr(found, member))
    holder = _own(module, first)
    original = holder.__dict__.get(member, _ABSENT)
    setattr(holder, member, replacement)
    _entries(module)[name] = _Entry(by, original, replacement)


def restore(module: Any, name: str, *, by: str) -> None:
    """Put back what was there before.

    Raises:
        Refused: ``patches.replaced-since``.
    """
    if not holds(module, name, by=by, anyhow=True):
        return
    verify(module, name, by=by)
    entry = _entries(module).pop(name)
    first, _, member = name.partition(".")
    holder = getattr(module, first) if member else module
    if entry.original is _ABSENT:
        delattr(holder, member or first)
    else:
        setattr(holder, member or first, entry.original)
    if member:
        _disown(module, first)


def verify(module: Any, name: str, *, by: str) -> None:
    """Make sure that a replacement is where it was put.

    Raises:
        Refused: ``patches.not-in-force`` or ``patches.replaced-since``.
    """
    entry = _entries(module).get(name)
    if entry is None or entry.by != by:
        raise Refused(
            "patches.not-in-force",
            expected=f"the replacement of the patch {by}",
            found="the original" if entry is None else f"that of {entry.by}",
            where=f"{module.__name__}:{name}",
            next=f"apply {by} first",
        )
    if _current(module, name) is not entry.replacement:
        raise Refused(
            "patches.replaced-since",
            expected=f"the replacement of the patch {by}",
            found="another object, put there by somebody else since",
            where=f"{module.__name__}:{name}",
            next="take the other replacement back first",
        )


def holds(module: Any, name: str, *, by: str, anyhow: bool = False) -> bool:
    """Whether a name is replaced by this patch."""
    entry = _entries(module).get(name)
    if entry is None or entry.by != by:
        return False
    return anyhow or _current(module, name) is entry.replacement


def forget(module: Any) -> None:
    """Forget what was replaced in a module that has just been executed again."""
    module.__dict__.pop(_MARK, None)


def _entries(module: Any) -> dict[str, _Entry]:
    found: dict[str, _Entry] = module.__dict__.setdefault(_MARK, {})
    return found


def _current(module: Any, name: str) -> Any:
    first, _, member = name.partition(".")
    found = getattr(module, first, _ABSENT)
    return getattr(found, "__dict__", {}).get(member, _ABSENT) if member else found


def _own(module: Any, name: str) -> type:
    """Return a class that only this module uses: its own, or a subclass put in its place."""
    found: type = getattr(module, name)
    if found.__module__ == module.__name__ or name in _entries(module):
        return found
    own = types.new_class(name, (found,))
    own.__module__, own.__doc__ = found.__module__, found.__doc__
    setattr(module, name, own)
    _entries(module)[name] = _Entry("a subclass", found, own)
    return own


def _disown(module: Any, name: str) -> None:
    """Put the class itself back when the last method of its subclass is gone."""
    entries = _entries(module)
    if name in entries and not any(other.startswith(f"{name}.") for other in entries):
        setattr(module, name, entries.pop(name).original)


def _no_conflict(module: Any, name: str, by: str) -> None:
    for other, entry in _entries(module).items():
        inside = other.startswith(f"{name}.") or (
            name.startswith(f"{other}.") and entry.by != "a subclass"
        )
        if (other == name or inside) and entry.by != "a subclass":
            raise Refused(
                "patches.conflict",
                expected=f"one patch for {name}",
                found=f"{by} and {entry.by}",
                where=f"{module.__name__}:{name}",
                next=f"leave one of {by} and {entry.by} out",
            )


def _other_shape(module: Any, name: str, by: str, found: str) -> Refused:
    return Refused(
        "patches.missing-anchor",
        expected=f"{name}, for the patch {by}",
        found=found,
        where=f"{module.__name__}:{name}",
        next="harness patches check",
    )
