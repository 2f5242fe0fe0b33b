"""Environment variables of ``vllm.envs``, told by its lines: of a table of 300 ten are asked for.

To parse that file takes longer than to read ten others. Where its lines do not tell, it is parsed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from harness.seams._lines import texts

_BOUND = re.compile(r"\n[ \t]*environment_variables\s*(?::|=(?!=))")
_HEAD = re.compile(r"\nenvironment_variables\b[^\n]*= \{(?=\n)")
_END = "\n}\n"
_QUOTED = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"' r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'" r"|#[^\n]*")
_KEY = re.compile(r'\n    "(\w+)":')
_UNQUOTED_KEY = "\n    :"
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))
_EDGE = re.compile(r"\n[^\s#)\]}]")
_CHECKED = "\nif TYPE_CHECKING:\n"
_NAMED = re.compile(r"[\w\"']")


@dataclass(frozen=True)
class Variables:
    """The table of a release.

    Attributes:
        text: Source of its module.
        names: Keys of its table.
    """

    text: str
    names: frozenset[str]

    @staticmethod
    def of(text: str) -> Variables | None:
        """Read a module's source; None where the lines do not tell its table."""
        head = _HEAD.search(text)
        if head is None or len(_BOUND.findall(text)) != 1 or texts(text) is None:
            return None
        body = text[head.end() : text.find(_END, head.end()) + 1]
        if any(mark in body for mark in ('"""', "'''", "\\\n")):
            return None
        first, *items = _QUOTED.sub("", body).split(_UNQUOTED_KEY)
        names = _KEY.findall(body)
        if (
            first.strip()
            or not names
            or len(items) != len(names)
            or not all(map(_is_closed, items))
        ):
            return None
        return Variables(text, frozenset(names))

    def default(self, name: str) -> ast.expr | None:
        """Return what type checkers are told that a variable is.

        Raises:
            LookupError: The lines do not tell it.
        """
        lines = list(self._lines(name))
        if not lines:
            return None
        begin = lines[0]
        checked = self.text.rfind(_CHECKED, 0, begin)
        if len(lines) > 1 or checked < 0 or _EDGE.search(self.text, checked + 1, begin):
            raise LookupError(name)
        try:
            body = ast.parse(self.text[begin + 4 : self.text.find("\n", begin)]).body
        except SyntaxError as error:
            raise LookupError(name) from error
        if len(body) != 1 or not isinstance(body[0], ast.AnnAssign):
            raise LookupError(name)
        return body[0].value

    def _lines(self, name: str) -> list[int]:
        """Return where the lines begin on which a name stands, not as a text or a comment."""
        found = []
        place = self.text.find(name)
        while place >= 0:
            end = place + len(name)
            line = self.text.rfind("\n", 0, place) + 1
            part = _NAMED.match(self.text[place - 1 : place]) or _NAMED.match(self.text, end)
            if part is None and not self.text[line:place].lstrip().startswith("#"):
                found.append(line)
            place = self.text.find(name, end)
        return found


def _is_closed(item: str) -> bool:
    return all(item.count(opens) == item.count(closes) for opens, closes in _PAIRS)
