"""Names of a prompt's fields: the unknown are told of, a misspelt one that counts is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from harness.dataset.prompt_set import Note
from harness.errors import UsageError

_CLOSE = 0.8
_MOST_NAMES = 20


@dataclass(frozen=True)
class Fields:
    """The fields of one kind of source.

    Attributes:
        known: What is read, or passed over on purpose.
        vital: Those without which other tokens are sent or trained on. A name close to one of
            these, in a prompt that has not the field itself, is an error.
    """

    known: frozenset[str]
    vital: tuple[str, ...]


_CONVERSATION = ("conversations", "messages", "tools")
LINE = Fields(
    frozenset({"id", "input_ids", "loss_mask", *_CONVERSATION}), ("input_ids", "loss_mask")
)
COLUMN = Fields(frozenset({"id", "input_ids", "loss_mask", "seq_len"}), LINE.vital)
# A line without its turns is refused as it is, and conversation_id or message_id is no mistake.
CONVERSATION = Fields(frozenset({"id", *_CONVERSATION}), ("tools",))


def refuse_misspelt(where: str, names: Collection[str], fields: Fields) -> None:
    """Hold the fields of one prompt to the names that count.

    Raises:
        UsageError: ``prompts.misspelt-field``: a name is close to a vital one that is not there.
    """
    for name in names:
        if name in fields.known:
            continue
        meant = _meant(name, fields.vital)
        if meant and meant not in names:
            raise UsageError(
                "prompts.misspelt-field",
                expected=f"the field {meant}, which is what is read",
                found=f"the field {name!r}",
                where=where,
                next=f"did you mean {meant}? Rename the field, or leave it out",
            )


class FieldWatch:
    """Counts the unknown fields of a source."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, str]] = {}
        self._further = (0, "")

    def see(self, where: str, names: Collection[str], fields: Fields) -> None:
        """Take in the fields of one prompt.

        Args:
            where: Its place, such as ``prompts.jsonl:7``.
            names: Its fields.
            fields: The fields of this kind of source.

        Raises:
            UsageError: See :func:`refuse_misspelt`.
        """
        unknown = [name for name in names if name not in fields.known]
        if not unknown:
            return
        refuse_misspelt(where, names, fields)
        for name in unknown:
            if name in self._seen or len(self._seen) < _MOST_NAMES:
                self._seen[name] = _more(self._seen.get(name, (0, "")), where)
            else:
                self._further = _more(self._further, where)

    def notes(self) -> Iterable[Note]:
        """Yield one note a name, with its count and its first place."""
        for name, (count, first) in self._seen.items():
            yield _note(f"the field {name!r} is unknown and was not read", count, first)
        if self._further[0]:
            yield _note("further unknown fields were not read", *self._further)


def _more(before: tuple[int, str], where: str) -> tuple[int, str]:
    count, first = before
    return count + 1, first or where


def _note(message: str, count: int, first: str) -> Note:
    return Note("prompts.unknown-field", message, count, (f"first at {first}",))


@lru_cache(maxsize=1024)
def _meant(name: str, vital: tuple[str, ...]) -> str | None:
    plain = {_plain(field): field for field in vital}
    close = get_close_matches(_plain(name), plain, n=1, cutoff=_CLOSE)
    return plain[close[0]] if close else None


def _plain(name: str) -> str:
    # lossMask, loss-mask and LOSS_MASK are all loss_mask written otherwise.
    return "".join(letter for letter in name.casefold() if letter.isalnum())
