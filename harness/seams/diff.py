"""What differs between two surfaces, member by member. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.seams.surface import Entry, Surface

_ABSENT = "-"


@dataclass(frozen=True)
class Difference:
    """One thing that two releases do not have in common.

    Attributes:
        of: ``seam`` or ``probe``.
        id: Its id or name.
        member: The part of the entry: ``kind``, ``signature``, ``field block_size``, ...; empty
            for a probe.
        before: What the first has; ``-`` for nothing.
        after: What the second has.
    """

    of: str
    id: str
    member: str
    before: str
    after: str


def diff(first: Surface, second: Surface) -> tuple[Difference, ...]:
    """Return every difference, probes first, then seams by id.

    Additions and new annotations are told too: this is the data, not a verdict on it.
    """
    found: list[Difference] = []
    for name in sorted({*first.probes, *second.probes}):
        before, after = first.probes.get(name, _ABSENT), second.probes.get(name, _ABSENT)
        if before != after:
            found.append(Difference("probe", name, "", before, after))
    for id in sorted({*first.entries, *second.entries}):
        found += _entries(id, first.entries.get(id), second.entries.get(id))
    return tuple(found)


def _entries(id: str, first: Entry | None, second: Entry | None) -> Iterator[Difference]:
    old, new = _members(first), _members(second)
    for member in dict.fromkeys((*old, *new)):
        before, after = old.get(member, _ABSENT), new.get(member, _ABSENT)
        if before != after:
            yield Difference("seam", id, member, before, after)


def _members(entry: Entry | None) -> dict[str, str]:
    if entry is None:
        return {}
    body: dict[str, Any] = entry.to_json()
    told = {
        name: ", ".join(value) if isinstance(value, list) else str(value)
        for name, value in body.items()
        if name != "fields"
    }
    for field in entry.fields:
        default = "required" if field.default is None else f"= {field.default}"
        usual = field.kind == "field" and not field.keyword_only
        by_name = ", by name" if field.keyword_only else ""
        told[f"field {field.name}"] = default if usual else f"{default} ({field.kind}{by_name})"
    return told
