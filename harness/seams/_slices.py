"""Single statements of a function that is not parsed: what it returns, what it stores.

A simple statement ends where a line begins no deeper than it does. Where that is not sure, nothing
is told, and the function is to be parsed.
"""

from __future__ import annotations

import ast
import re
from functools import cache, lru_cache

from harness.seams._lines import Span, texts

_RETURN = re.compile(r"\n( +)return\b")
_BESIDE = re.compile(r"[:;] *return\b")
_INNER = re.compile(r"\n( +)(?:async +def|def|class) ")
_GOES_ON = "\\\n"
_PARTED = re.compile(r"self\s*\.[\s#]|self[\s#]+\.")
_WORD = re.compile(r"\w")
_AS = " as "
_TARGET = re.compile(
    r"(?!\w)(?:[\s\\]*(?:\*\*|//|>>|<<|[-+*/%&|^@])?=(?!=)"
    r"|[\s\\]*:(?! *(?:#[^\n]*)?\n)"
    r"|\s*[,)\]](?:[ \w.,*()\[\]]|#[^\n]*|\\\n|\n *(?=[)\]])|(?<=[,(\[])\s*\n)*=(?!=))"
)
"""What follows a name that is assigned: alone, with a type, or in a list of targets."""
_BEFORE = re.compile(r" +[\w.]+")
_GIVEN = re.compile(r" *(?:: [^\n=]+)?=(?!=)")
_ASSIGNING = (ast.Assign, ast.AnnAssign)


def returned(text: str) -> list[ast.expr | None] | None:
    """Return what a function returns, in the order of the text.

    Args:
        text: Its source, from ``def`` on.

    Returns:
        None where the lines do not tell it.
    """
    if "return" not in text:
        return []
    held = texts(text)
    if held is None or _GOES_ON in text or _returns_beside(text):
        return None
    skipped = [*held, *_inner(text, held)]
    found = [
        _statement(text, match.start() + 1, len(match[1]), held)
        for match in _RETURN.finditer(text)
        if not _inside(match.start() + 1, skipped)
    ]
    try:
        body = ast.parse("\n".join(found)).body
    except SyntaxError:
        return None  # one ended in the middle of something
    told = [node.value for node in body if isinstance(node, ast.Return)]
    return told if len(told) == len(found) == len(body) else None


def may_store(text: str, attribute: str) -> bool:
    """Whether a function may assign ``self.ATTRIBUTE``."""
    return attribute in text and (_parted(text) or _store(text, attribute) >= 0)


def stored(text: str, attribute: str) -> ast.expr | None:
    """Return what a function assigns to ``self.ATTRIBUTE`` first; None where the lines do not tell.

    They do where it is the first of what a statement of its own assigns to.
    """
    place = _store(text, attribute)
    line = text.rfind("\n", 0, place) + 1
    if place < 0 or not text[line:place].isspace() or _parted(text):
        return None
    held, end = texts(text), place + len("self.") + len(attribute)
    if held is None or _inside(line, held) or _GIVEN.match(text, end) is None:
        return None
    try:
        body = ast.parse(_statement(text, line, place - line, held)).body
    except SyntaxError:
        return None
    return body[0].value if len(body) == 1 and isinstance(body[0], _ASSIGNING) else None


def given(text: str, attribute: str) -> list[ast.expr] | None:
    """Return what statements of a function assign to an attribute of that name, of any object.

    None where the lines do not tell it: where one assigns anything else beside.
    """
    if attribute not in text:
        return []
    held = texts(text)
    if held is None or _GOES_ON in text:
        return None
    found: list[ast.expr] = []
    for match in _equals(attribute).finditer(text):
        line = text.rfind("\n", 0, match.start()) + 1
        before = text[line : match.start()]
        depth = len(before) - len(before.lstrip(" "))
        if _BEFORE.fullmatch(before) is None or _inside(line, held):
            return None
        try:
            body = ast.parse(_statement(text, line, depth, held)).body
        except SyntaxError:
            return None
        if len(body) != 1 or not isinstance(body[0], ast.Assign) or len(body[0].targets) != 1:
            return None
        found.append(body[0].value)
    return found


@cache
def _equals(attribute: str) -> re.Pattern[str]:
    return re.compile(rf"\.\s*{attribute}\s*=(?!=)")


def _returns_beside(text: str) -> bool:
    """Whether a return may stand behind something on its line."""
    for match in _BESIDE.finditer(text):
        line = text.rfind("\n", 0, match.start()) + 1
        if not text[line : match.start()].lstrip().startswith("#"):
            return True
    return False


def _inner(text: str, held: list[Span]) -> list[Span]:
    """Return where functions and classes inside begin and end."""
    return [
        (match.start(), match.start() + 1 + depth + len(_statement(text, place, depth, held)))
        for match in _INNER.finditer(text)
        for place, depth in [(match.start() + 1, len(match[1]))]
        if not _inside(place, held)
    ]


@lru_cache(maxsize=1024)
def _parted(text: str) -> bool:
    """Whether a search for ``self.x`` may miss one, or a line may go on in the next."""
    return _GOES_ON in text or _PARTED.search(text) is not None


def _store(text: str, attribute: str) -> int:
    """Return where it may be assigned first; -1: nowhere."""
    name = f"self.{attribute}"
    place = text.find(name)
    while place >= 0:
        end = place + len(name)
        line = text.rfind("\n", 0, place) + 1
        if _TARGET.match(text, end) or (_AS in text[line:place] and _WORD.match(text, end) is None):
            return place
        place = text.find(name, end)
    return -1


@cache
def _no_deeper(depth: int) -> re.Pattern[str]:
    return re.compile(rf"\n {{0,{depth}}}+[^\s#)\]}}]")


def _statement(text: str, line: int, depth: int, held: list[Span]) -> str:
    """Return a statement that begins on a line, without its indentation."""
    for match in _no_deeper(depth).finditer(text, line):
        if not _inside(match.start() + 1, held):
            return text[line + depth : match.start()]
    return text[line + depth :]


def _inside(place: int, held: list[Span]) -> bool:
    return any(begin < place < end for begin, end in held)
