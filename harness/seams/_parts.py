"""Modules read in parts: a function or class of a large file is parsed when it is asked for.

A quarter of what a release's files hold at the seams is never looked at, and parsing is most of
the time of a reading. Where the parts cannot be told from the lines alone, all is parsed at once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.seams._bindings import Bound, bindings
from harness.seams._later import outlined, put_off
from harness.seams._lines import Span, edges, texts

_SMALLEST = 3_000
"""Characters of a file below which it is parsed at once."""
_HEAD = re.compile(r"(?:async )?(?:def|class) (\w+)")
_STARTS = ("def ", "class ", "async def ", "@")
_EDGE = re.compile(r"\n[^\s#)\]}]")
"""Where a line begins at the left edge, and neither comments nor closes anything."""


class _Part(NamedTuple):
    """Lines of one definition: number and place of the first, from nought, and the text."""

    name: str
    first: int
    start: int
    text: str
    held: list[Span]


@dataclass
class Names:
    """What a module binds, found name by name.

    Attributes:
        text: Its source.
        rest: Everything but the parts.
        broken: Whether a part that was asked for is no Python.
    """

    text: str
    rest: ast.Module
    _parts: dict[str, list[_Part]]
    _whole: ast.Module | None = None
    _rest: dict[str, list[Bound]] = field(default_factory=dict)
    _found: dict[str, list[Bound]] = field(default_factory=dict)
    broken: bool = False

    def __post_init__(self) -> None:
        """Bind what is parsed already."""
        self._rest = bindings(self.rest.body)

    @classmethod
    def of(cls, text: str, *, whole: bool = False) -> Names:
        """Read a module's source.

        Args:
            text: The source.
            whole: Parse all of it now.

        Raises:
            SyntaxError: It is no Python, as far as it is parsed.
        """
        parts = _split(text) if len(text) >= _SMALLEST and not whole else []
        if parts:
            try:
                return cls(text, ast.parse(_without(text, parts)), _by_name(parts))
            except SyntaxError:
                pass  # a part ended in the middle of something
        tree = ast.parse(text)
        return cls(text, tree, {}, tree)

    @property
    def tree(self) -> ast.Module:
        """The whole module.

        Raises:
            SyntaxError: It is no Python.
        """
        if self._whole is None:
            self._whole = ast.parse(self.text)
        return self._whole

    def __contains__(self, name: str) -> bool:
        """Whether the module binds a name."""
        return name in self._rest or name in self._parts

    def get(self, name: str, default: Iterable[Bound] = ()) -> Iterable[Bound]:
        """Return the candidates of a name, best first."""
        if name not in self._parts:
            return self._rest.get(name, default)
        if name not in self._found:
            self._found[name] = self._bound(name)
        return self._found[name]

    def _bound(self, name: str) -> list[Bound]:
        try:
            body = [node for part in self._parts[name] for node in _parsed(part)]
            named = [getattr(node, "name", "") for node in body]
            if set(named) != {name}:
                raise SyntaxError
        except SyntaxError:
            return self._from_all(name)
        if name in self._rest:
            body = sorted([*self.rest.body, *body], key=lambda node: node.lineno)
        return bindings(body).get(name, [])

    def _from_all(self, name: str) -> list[Bound]:
        try:
            return bindings(self.tree.body).get(name, [])
        except SyntaxError:
            self.broken = True
            return []


def _split(text: str) -> list[_Part]:
    """Tell the definitions of a module by its lines; none where they do not tell them."""
    held = texts(text)
    if held is None:
        return []
    parts: list[_Part] = []
    start, head, first, counted = None, None, 0, 0
    for edge in [*edges(text, _EDGE, held), len(text)]:
        if start is not None and head is not None:
            parts.append(_Part(head, first, start, text[start:edge], held))
            start, head = None, None
        if start is None and not text.startswith(_STARTS, edge):
            continue
        if start is None:
            first += text.count("\n", counted, edge)
            start = counted = edge
        found = _HEAD.match(text, edge)
        head = found[1] if found else None
    return parts


def _by_name(parts: list[_Part]) -> dict[str, list[_Part]]:
    found: dict[str, list[_Part]] = {}
    for part in parts:
        found.setdefault(part.name, []).append(part)
    return found


def _without(text: str, parts: list[_Part]) -> str:
    """Return the source with empty lines for its parts."""
    pieces, last = [], 0
    for part in parts:
        pieces += [text[last : part.start], "\n" * part.text.count("\n")]
        last = part.start + len(part.text)
    return "".join([*pieces, text[last:]])


def _parsed(part: _Part) -> list[ast.stmt]:
    later = put_off(part.text, part.first)
    if later is not None:
        return later
    start, end = part.start, part.start + len(part.text)
    inside = [(a - start, b - start) for a, b in part.held if start <= a < end]
    found = outlined(part.text, part.first, inside)
    return found or ast.parse("\n" * part.first + part.text).body
