"""Edits of a real release held against what the gate says of them."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch

from harness.gate.scale import Verdict
from harness.gate.static import StaticAnswer, judge
from harness.gate.verdict import SeamStatus
from tests.unit.edited import installed
from tests.unit.surgery import Edit

GREEN = frozenset({Verdict.OK, Verdict.OK_WITH_PATCHES})


@dataclass(frozen=True)
class Break:
    """One edit that takes something away from somebody.

    Attributes:
        path: The file.
        edit: What happens to it.
        seams: Patterns of the seams that may be told; the first must be.
        probes: Patterns of the probes that may change; where no seam is told, the first must.
        hurts: Generations that are no longer green; empty: it is told, and decides nothing.
        says: Words of the first seam's hint.
    """

    path: str
    edit: Edit
    seams: str = ""
    probes: str = ""
    hurts: str = ""
    says: str = ""


def answer_to(texts: dict[str, str | None]) -> StaticAnswer:
    """Judge the installed release with other files against itself."""
    release = installed()
    return judge(release.surface, *release.edited(texts))


def told_by(answer: StaticAnswer) -> dict[str, str]:
    """Return what is told: seam or probe -> its hint."""
    seams = {one.id: one.hint for one in answer.seams if one.status is not SeamStatus.HOLDS}
    return seams | {one.name: "" for one in answer.probes if one.changed}


def told_where_it_breaks(case: Break) -> None:
    """Hold that a break is told at its seam or probe, nowhere else, and to whom it hurts."""
    text = installed().text(case.path)
    changed = case.edit(text)
    assert changed != text
    answer = answer_to({case.path: changed or None})
    told = told_by(answer)
    allowed = f"{case.seams} {case.probes}"
    must = allowed.split()[0]
    assert any(fnmatch(one, must) for one in told), told
    assert [one for one in told if not _matches(one, allowed)] == []
    hurt = {one.name for one in answer.generations if one.verdict not in GREEN}
    assert hurt == set(case.hurts.split()), [one.reasons for one in answer.generations]
    if case.says:
        assert case.says in told[must], told[must]


def not_told(path: str, edit: Edit) -> None:
    """Hold that nothing is told of an edit, and that both generations stay green."""
    text = installed().text(path)
    changed = edit(text)
    assert changed != text
    answer = answer_to({path: changed})
    assert told_by(answer) == {}
    assert {one.verdict for one in answer.generations} <= GREEN


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns.split())
