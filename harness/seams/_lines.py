"""Where definitions begin and end, told by the lines of a text before it is parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ODD = ("\r", "\f", "\v", "\t")

Span = tuple[int, int]


def texts(text: str) -> list[Span] | None:
    """Return where texts of many lines begin and end; None where the lines do not tell it.

    They do not where both kinds of three quotes are used, where quotes or a comment stand before
    one on its line, where one holds an escaped quote at its end, or where the line is the rest of
    another.
    """
    if any(mark in text for mark in _ODD):
        return None  # Python counts lines or columns otherwise
    mark = '"""'
    if "'''" in text:
        if mark in text:
            return None
        mark = "'''"
    found: list[Span] = []
    begin = text.find(mark)
    while begin >= 0:
        line = text.rfind("\n", 0, begin) + 1
        end = text.find(mark, begin + 3)
        if end < 0 or _doubtful(text[line:begin]) or text[line - 2 : line] == "\\\n":
            return None
        # The last quote of a text may stand before its mark.
        if text[end - 1] == "\\" or text[end + 3 : end + 4] == mark[0]:
            return None
        if text.find("\n", begin, end) >= 0:
            found.append((begin, end + 3))
        begin = text.find(mark, end + 3)
    return found


def edges(text: str, edge: re.Pattern[str], held: list[Span]) -> Iterator[int]:
    """Yield where a line begins that matches ``\\n...``, unless it stands in one of the texts."""
    if edge.match("\n" + text[:8]):
        yield 0
    spans = iter([*held, (len(text), len(text))])
    begin, end = next(spans)
    for match in edge.finditer(text):
        place = match.start() + 1
        while place >= end:
            begin, end = next(spans)
        if place <= begin:
            yield place


def _doubtful(before: str) -> bool:
    return not before.isspace() and any(mark in before for mark in "#'\"")
