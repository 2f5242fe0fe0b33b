"""What typer finds wrong with a command line, told as every other error is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import typer

from harness.errors import Failure

# typer brings its own copy of click, or uses click itself, by release.
_CLICK: Final[type[Exception]] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
_IDS: Final = {
    "NoSuchOption": "usage.unknown-option",
    "MissingParameter": "usage.missing",
    "BadParameter": "usage.bad-value",
    "BadOptionUsage": "usage.bad-option",
}
_OTHER: Final = "usage.wrong"
_EXPECTED: Final = {
    "usage.unknown-option": "an option that the command has",
    "usage.missing": "everything that the command needs",
    "usage.bad-value": "a value of the option's kind",
    "usage.bad-option": "an option with its value",
    _OTHER: "a command line as its help shows it",
}


def wants_json(words: Sequence[str]) -> bool:
    """Tell whether a command line asks for JSON; what follows ``--`` is somebody else's."""
    return "--json" in _own(words)


def refuse_empty(words: Sequence[str]) -> None:
    """Refuse an empty word, as a shell makes one of an unset variable: a path would be ``.``.

    Raises:
        typer.BadParameter: With the option whose value it is.
    """
    before = ""
    for word in _own(words):
        option, equals, value = word.partition("=")
        if word.startswith("--") and equals and not value:
            before, word = option, ""
        if not word:
            what = f"The value of {before}" if before.startswith("-") else "An argument"
            raise typer.BadParameter(f"{what} is empty.")
        before = word


def _own(words: Sequence[str]) -> list[str]:
    own = list(words)
    return own[: own.index("--")] if "--" in own else own


def failure_of(error: BaseException, root: Any, words: Sequence[str]) -> Failure | None:
    """Return a usage error of typer as a failure; None for anything else.

    Args:
        error: What was raised.
        root: The group of all commands.
        words: The command line.
    """
    if not isinstance(error, _CLICK):
        return None
    told: Any = error
    path = _path(root, words)
    id = _IDS.get(type(error).__name__, _OTHER)
    return Failure(
        id=id,
        expected=_EXPECTED[id],
        found=str(told.format_message()).strip() or "no command",
        where=path,
        next=f"{path} --help",
    )


def _path(root: Any, words: Sequence[str]) -> str:
    """Return the command that the words name, as far as they name one."""
    path, group = ["harness"], root
    for word in words:
        group = getattr(group, "commands", {}).get(word)
        if group is None:
            break
        path.append(word)
    return " ".join(path)
