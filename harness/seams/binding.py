"""Binds the calls that consumers make against a surface. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from harness.seams import _signature
from harness.seams.inventory import SEAMS
from harness.seams.seam import Call, Consumer, Kind, Seam, Use
from harness.seams.surface import Entry, Surface

FindingKind = Literal[
    "missing",
    "moved",
    "other-owner",
    "other-kind",
    "needs-argument",
    "unknown-keyword",
    "too-many-arguments",
    "unreadable",
]

_CALLABLE = ("function", "class", "method")
_DATA = ("field", "initvar", "noinit", "member", "attribute", "property")
_ACCEPTED: dict[Kind, tuple[str, ...]] = {
    Kind.MODULE: ("module",),
    Kind.FUNCTION: ("function", "class"),
    Kind.CLASS: ("class",),
    Kind.METHOD: ("method",),
    Kind.FIELD: _DATA,
    Kind.ATTRIBUTE: (*_DATA, "variable"),
    Kind.ENV: ("env",),
}


@dataclass(frozen=True)
class Finding:
    """One way in which a release does not serve a consumer.

    Attributes:
        seam: The seam's id.
        by: The consumer.
        kind: ``missing``: not there; ``moved``: there, where the consumer does not look;
            ``other-owner``: only another class defines it; ``other-kind``: no longer what the
            consumer takes it for; ``needs-argument``, ``unknown-keyword`` and
            ``too-many-arguments``: a call that would raise; ``unreadable``: the syntax does
            not tell.
        subject: The argument or the place in question.
        expected: What the consumer relies on.
        found: What the release offers.
    """

    seam: str
    by: Consumer
    kind: FindingKind
    subject: str
    expected: str
    found: str

    @property
    def reason(self) -> str:
        """The finding in a few words, such as ``needs block_size``."""
        return {
            "missing": f"missing in {self.found}",
            "moved": f"moved to {self.found}",
            "other-owner": f"defined by {self.subject} only",
            "other-kind": f"now a {self.found}",
            "needs-argument": f"needs {self.subject}",
            "unknown-keyword": f"does not know {self.subject}",
            "too-many-arguments": f"takes fewer arguments: {self.subject}",
            "unreadable": f"cannot be read: {self.found}",
        }[self.kind]

    @property
    def key(self) -> str:
        """Kind and subject without places, such as ``needs-argument:block_size``."""
        return f"{self.kind}:{self.subject.rpartition(':')[2].rpartition('.')[2]}"

    @property
    def reason_at_seam(self) -> str:
        """The finding with its seam, such as ``scheduler needs block_size``."""
        return f"{self.seam} {self.reason}"

    def __str__(self) -> str:
        return f"{self.by}: {self.seam} {self.reason}"


def bind(
    surface: Surface, consumers: Iterable[Consumer] = Consumer, *, seams: Iterable[Seam] = SEAMS
) -> tuple[Finding, ...]:
    """Return every way in which a release does not serve these consumers.

    Raises:
        NotComparable: ``seams.not-recorded``: the surface lacks a seam.
    """
    wanted = set(consumers)
    return tuple(
        finding
        for seam in seams
        for use in seam.uses
        if use.by in wanted
        for finding in _check(seam, use, surface.entry(seam.id))
    )


def bind_call(signature: inspect.Signature, call: Call) -> tuple[FindingKind, str] | None:
    """Return why a call would raise ``TypeError``, with the argument; None where it binds."""
    return next(call_problems(signature, call), None)


def call_problems(signature: inspect.Signature, call: Call) -> Iterator[tuple[FindingKind, str]]:
    """Yield every reason why a call would raise ``TypeError``, with the argument."""
    parameters = signature.parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    takes = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    by_place = {parameter.name for parameter in takes[: call.positional]}
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    found = False
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for name in call.keywords:
            if name not in by_name:
                found = True
                yield ("unknown-keyword", name)
    if call.positional > len(takes) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        found = True
        yield ("too-many-arguments", f"{call.positional} by place, {len(takes)} taken")
    for parameter in parameters:
        given = parameter.name in by_place or parameter.name in call.keywords
        optional = parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if not given and not optional:
            found = True
            yield ("needs-argument", parameter.name)
    if found:
        return
    try:
        signature.bind(*[None] * call.positional, **dict.fromkeys(call.keywords))
    except TypeError as error:
        yield ("unreadable", str(error))


def _check(seam: Seam, use: Use, entry: Entry) -> Iterator[Finding]:
    known = use.paths or seam.paths

    def finding(kind: FindingKind, subject: str, expected: str, found: str) -> Finding:
        return Finding(seam.id, use.by, kind, subject, expected, found)

    if entry.missing:
        if not use.optional:
            yield finding("missing", known[0], f"{seam.kind} {known[0]}", entry.where)
        return
    if not set(known) & set(entry.paths):
        if not use.optional:
            yield finding("moved", known[0], f"{seam.kind} {known[0]}", entry.paths[0])
        return
    if entry.kind == "external":
        yield finding("unreadable", known[0], f"{seam.kind} in vLLM", f"{entry.where} gives it")
        return
    if entry.kind not in _ACCEPTED[seam.kind]:
        yield finding("other-kind", known[0], str(seam.kind), entry.kind)
        return
    if seam.owners and entry.owner not in seam.owners:
        yield finding(
            "other-owner",
            entry.owner,
            f"defined by {' or '.join(seam.owners)}",
            f"{entry.where}:{entry.owner}",
        )
    yield from _check_calls(seam, use, entry)


def _check_calls(seam: Seam, use: Use, entry: Entry) -> Iterator[Finding]:
    text = entry.signature if entry.kind in _CALLABLE else None
    if text is None:
        for call in use.calls[:1]:
            yield Finding(seam.id, use.by, "unreadable", str(call), str(call), entry.kind)
        return
    calls = use.calls
    if use.either:
        # The last one is the newest: what it lacks is what there is to do.
        calls = () if any(not _problems(text, call) for call in calls) else calls[-1:]
    for call in calls:
        for kind, subject in _problems(text, call):
            yield Finding(seam.id, use.by, kind, subject, str(call), text)


@cache
def _problems(signature: str, call: Call) -> tuple[tuple[FindingKind, str], ...]:
    """What :func:`call_problems` yields; few of a release's signatures are not the last one's."""
    return tuple(call_problems(_signature.parse(signature), call))
