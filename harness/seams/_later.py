"""Classes read in parts: a method, as a function, is parsed when it is asked for.

Of a large class a few methods are looked at, and parsing is most of the time of a reading. The
class is parsed with an ellipsis for each method that has no decorators, and for the body of each
that has.
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from harness.seams._lines import Span, edges

_SMALLEST = 1_000
"""Characters of a class below which it is parsed at once."""
_WORTH = 100
"""Characters of a method below which it is parsed with its class."""
_EDGE = re.compile(r"\n {0,4}+[^\s#)\]}]")
"""Where a line begins no deeper than a member does, and neither comments nor closes anything."""
_DEF = re.compile(r"    (async )?def (\w+)\(")
_TOP = re.compile(r"(async )?def (\w+)\(")
_END = r"[^\n]*:(?: *#[^\n]*)?\n"


def _head(begin: str, depth: str) -> re.Pattern[str]:
    within = rf"(?:(?:{depth}[\s)\]][^\n]*)?\n)"
    return re.compile(rf"{begin}(?:{_END}|[^\n]*\n{within}*?{depth}[)\]]{_END})")


_HEAD = _head(_DEF.pattern, "    ")
_TOP_HEAD = _head(_TOP.pattern, "")
_STUB = "..."
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class _Later:
    """A function that is parsed at the first look, what is inside it with lines of its own.

    Attributes:
        text: Its source from ``def`` on.
    """

    text: str

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Parse what is missing.

            Raises:
                SyntaxError: It is no Python.
            """
            if name not in self._fields:
                raise AttributeError(name)
            top = self.text[:1] != " "
            head = (_TOP_HEAD if top else _HEAD).match(self.text) if name != "body" else None
            node = _stubbed(self.text[: head.end()], top) if head is not None else None
            if node is None:
                node = _parsed(self.text, top)
            for field in self._fields:
                if field != "body" or node.body is not _NO_BODY:
                    vars(self).setdefault(field, getattr(node, field))
            return vars(self)[name]

        @property
        def end_lineno(self) -> int:
            """The last line that is neither empty nor a comment."""
            code = self.text.rstrip()
            while code[code.rfind("\n") + 1 :].lstrip().startswith("#"):
                code = code[: code.rfind("\n")].rstrip()
            return self.lineno + code.count("\n")


_NO_BODY: list[ast.stmt] = []


# Visitors go by the names of these classes.
class FunctionDef(_Later, ast.FunctionDef):
    """``def``, parsed later."""


class AsyncFunctionDef(_Later, ast.AsyncFunctionDef):
    """``async def``, parsed later."""


def parse_bodies(node: ast.AST) -> None:
    """Parse what is put off in a function, or in the methods of a class.

    Raises:
        SyntaxError: A body is no Python.
    """
    for one in node.body if isinstance(node, ast.ClassDef) else (node,):
        if isinstance(one, FunctionDef | AsyncFunctionDef):
            _ = one.body


def may_hold(node: ast.AST, word: str) -> bool:
    """Whether a word may stand in a statement; told without parsing it."""
    return not isinstance(node, _Later) or word in node.text


def text_of(node: ast.AST) -> str | None:
    """Return the source of a function that is parsed later; None for all others."""
    return node.text if isinstance(node, _Later) else None


def outlined(text: str, first: int, held: list[Span]) -> list[ast.stmt] | None:
    """Parse one class without its methods.

    Args:
        text: Its source with its decorators, at the left edge.
        first: Lines above it.
        held: Where texts of many lines stand in it.

    Returns:
        The class; None where the lines do not tell its methods.
    """
    if len(text) < _SMALLEST:
        return None
    pieces: list[str] = []
    cuts: list[tuple[int, int]] = []
    last, decorated = 0, False
    for begin, end in pairwise([*edges(text, _EDGE, held), len(text)]):
        kept = decorated
        decorated = text[begin + 4 : begin + 5] == "@" and text[begin] == " "
        found = _DEF.match(text, begin) if end - begin >= _WORTH else None
        if found is None:
            continue
        head = _HEAD.match(text, begin, end) if kept else None
        if kept and head is None:
            continue
        if text[end - 2 : end] == "\\\n":
            return None
        cut = begin if head is None else head.end()
        pieces += [text[last:cut], "        ..." if kept else "    ..."]
        pieces.append("\n" * text.count("\n", cut, end))
        cuts.append((begin, end))
        last = end
    if not cuts:
        return None
    try:
        body = ast.parse("\n" * first + "".join(pieces) + text[last:]).body
    except SyntaxError:
        return None  # a method ended in the middle of something
    return body if _put_off(body, text, first, cuts) else None


def put_off(text: str, first: int) -> list[ast.stmt] | None:
    """Return a function of a module that is parsed later; None where it is parsed at once.

    Args:
        text: Its source, at the left edge.
        first: Lines above it.
    """
    found = _TOP.match(text) if len(text) >= _WORTH else None
    return None if found is None else [_made(found, text, first + 1, 0, {"decorator_list": []})]


def _put_off(body: list[ast.stmt], text: str, first: int, cuts: list[tuple[int, int]]) -> bool:
    """Put methods for their marks, to be parsed later; False where one is not what it seemed."""
    if len(body) != 1 or not isinstance(body[0], ast.ClassDef):
        return False
    members = body[0].body
    places = {node.lineno: n for n, node in enumerate(members)}
    line, counted = first + 1, 0
    for begin, end in cuts:
        line += text.count("\n", counted, begin)
        counted = begin
        place = places.get(line, -1)
        made = _later(members[place], text[begin:end]) if place >= 0 else None
        if made is None:
            return False
        members[place] = made
    return True


def _later(node: ast.stmt, text: str) -> ast.stmt | None:
    found = _DEF.match(text)
    assert found is not None
    if isinstance(node, _FUNCTIONS):
        if not _is_stub(node.body):
            return None
        known = {name: getattr(node, name) for name in node._fields if name != "body"}
    elif _is_stub([node]):
        known = {"decorator_list": []}
    else:
        return None
    return _made(found, text, node.lineno, node.col_offset, known)


def _made(
    found: re.Match[str], text: str, line: int, column: int, known: dict[str, Any]
) -> FunctionDef | AsyncFunctionDef:
    kind = AsyncFunctionDef if found[1] else FunctionDef
    made = kind(found[2], None, None, [])  # type: ignore[arg-type]
    told = vars(made)
    # Whatever its constructor put in the place of what is not parsed yet.
    told.clear()
    told["name"] = found[2]
    told |= known
    told["lineno"], told["col_offset"], told["text"] = line, column, text
    return made


def _stubbed(head: str, top: bool) -> ast.stmt | None:
    """Parse a function's head, with no body; None where it is more than that."""
    try:
        node = _parsed(f"{head}        {_STUB}\n", top)
    except SyntaxError:
        return None
    if not isinstance(node, _FUNCTIONS) or not _is_stub(node.body):
        return None
    node.body = _NO_BODY
    return node


def _parsed(text: str, top: bool) -> ast.stmt:
    """Parse a function of a module, or a method.

    Raises:
        SyntaxError: It is no Python, or more than one.
    """
    body = ast.parse(text if top else f"class _:\n{text}").body
    if not top:
        body = [node for cls in body if isinstance(cls, ast.ClassDef) for node in cls.body]
    if len(body) != 1:
        raise SyntaxError
    return body[0]


def _is_stub(body: list[ast.stmt]) -> bool:
    only = body[0]
    return (
        len(body) == 1
        and isinstance(only, ast.Expr)
        and isinstance(only.value, ast.Constant)
        and only.value.value is ...
    )
