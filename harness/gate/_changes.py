"""What became of one seam between two releases, as far as somebody relies on it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from harness.gate.verdict import SeamStatus
from harness.seams import Call, Entry, Kind, Seam, Use

_LONGEST = 100


@dataclass(frozen=True)
class Difference:
    """One difference that a user of the seam may feel.

    Attributes:
        status: ``moved``, ``changed`` or ``missing``.
        known: What there was.
        found: What there is.
        breaks: Whether every consumer that is concerned stops working by it.
        doubtful: Whether nobody can tell that from the files.
        uses: Whom it concerns; empty: everybody who relies on the seam.
        subject: The argument, default or place in question.
    """

    status: SeamStatus
    known: str
    found: str
    breaks: bool = False
    doubtful: bool = False
    uses: tuple[Use, ...] = ()
    subject: str = ""


def differences(seam: Seam, known: Entry, found: Entry) -> tuple[Difference, ...]:
    """Return what changed at a seam beside calls that no longer bind.

    Additions, other annotations, other names of arguments passed by place, and code that lies
    elsewhere and is re-exported are no differences.
    """
    if known == found:
        return ()
    if known.missing or found.missing:
        return (_gone(known, found),) if found.missing and not known.missing else ()
    return (
        *_moved(known, found),
        *_kind(seam, known, found),
        *_owner(seam, known, found),
        *_order(seam, known, found),
        *_defaults(seam, known, found),
        *_returns(seam, known, found),
        *_bases(known, found),
    )


def describe(entry: Entry) -> str:
    """Return an entry in a few words."""
    if entry.missing:
        return f"missing in {entry.where}" if entry.where else "missing"
    text = entry.paths[0] if entry.paths else entry.where
    if entry.signature and len(entry.signature) <= _LONGEST:
        text += entry.signature
    elif entry.default is not None:
        text += f" = {entry.default}"
    return f"{entry.kind} {text}"


def _gone(known: Entry, found: Entry) -> Difference:
    return Difference(SeamStatus.MISSING, describe(known), describe(found), subject="place")


def _moved(known: Entry, found: Entry) -> Iterator[Difference]:
    if known.paths and known.paths[0] not in found.paths:
        yield Difference(SeamStatus.MOVED, known.paths[0], found.paths[0], subject="place")


def _kind(seam: Seam, known: Entry, found: Entry) -> Iterator[Difference]:
    if known.kind == found.kind:
        return
    was_field = seam.kind is Kind.FIELD and known.kind == "field"
    read_no_more = was_field and found.kind == "initvar"
    given_no_more = was_field and found.kind == "noinit"
    yield Difference(
        SeamStatus.CHANGED,
        known.kind,
        found.kind,
        breaks=read_no_more,
        doubtful=given_no_more,
        subject="kind",
    )


def _owner(seam: Seam, known: Entry, found: Entry) -> Iterator[Difference]:
    if known.owner and found.owner and known.owner != found.owner:
        yield Difference(
            SeamStatus.CHANGED,
            f"defined by {known.owner}",
            f"defined by {found.owner}",
            subject="owner",
        )


def _order(seam: Seam, known: Entry, found: Entry) -> Iterator[Difference]:
    """Arguments passed by place that another place takes now; a new name alone is none."""
    before, after = known.parsed(), found.parsed()
    if before is None or after is None:
        return
    old, new = _places(before), _places(after)
    for use in seam.uses:
        passed = max((call.positional for call in use.calls), default=0)
        swapped = [
            name for at, name in enumerate(old[:passed]) if name in new and new.index(name) != at
        ]
        if swapped:
            yield Difference(
                SeamStatus.CHANGED,
                f"({', '.join(old[:passed])})",
                f"({', '.join(new[: max(passed, 1)])})",
                breaks=True,
                uses=(use,),
                subject=f"the place of {', '.join(swapped)}",
            )


def _places(signature: inspect.Signature) -> list[str]:
    return [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]


def _defaults(seam: Seam, known: Entry, found: Entry) -> Iterator[Difference]:
    """Another default, where somebody leaves it to vLLM."""
    if known.signature is None and known.default is not None and found.default != known.default:
        # Constants of a module change with each release; only what a class gives is a default.
        if known.kind != "variable" and seam.kind is not Kind.ENV:
            yield Difference(
                SeamStatus.CHANGED,
                f"default {known.default}",
                "required" if found.default is None else f"default {found.default}",
                subject="default",
            )
        return
    before, after = known.parsed(), found.parsed()
    calls = [call for use in seam.uses for call in use.calls]
    if before is None or after is None or not calls or seam.id == "engine-args":
        return
    places = _places(before)
    for name, parameter in before.parameters.items():
        other = after.parameters.get(name)
        if other is None or parameter.default is parameter.empty or other.default is other.empty:
            continue
        if parameter.default == other.default:
            continue
        if any(not _passes(call, places, name) for call in calls):
            yield Difference(
                SeamStatus.CHANGED,
                f"{name}={parameter.default}",
                f"{name}={other.default}",
                subject=name,
            )


def _passes(call: Call, places: list[str], name: str) -> bool:
    return name in call.keywords or name in places[: call.positional]


def _returns(seam: Seam, known: Entry, found: Entry) -> Iterator[Difference]:
    if known.returns == found.returns or not known.returns or not found.returns:
        return
    before, after = set(known.returns.split("|")), set(found.returns.split("|"))
    users = tuple(use for use in seam.uses if use.calls)
    if before & after and not _narrowed(before, after):
        return
    # What came back as None was not read.
    read = before != {"none"} and not seam.result_unused
    told = "value" not in before | after
    yield Difference(
        SeamStatus.CHANGED,
        f"returns {known.returns}",
        f"returns {found.returns}",
        breaks=read and told and not before & after,
        doubtful=read and not told and not before & after,
        uses=users,
        subject="what it returns",
    )


def _narrowed(before: set[str], after: set[str]) -> bool:
    """Whether another number of values may come back than before."""
    old = {shape for shape in before if shape.startswith("tuple-")}
    new = {shape for shape in after if shape.startswith("tuple-")}
    return old != new


def _bases(known: Entry, found: Entry) -> Iterator[Difference]:
    lost = [base for base in known.bases if base not in found.bases]
    if lost and known.kind == found.kind == "class":
        yield Difference(
            SeamStatus.CHANGED,
            f"a {', '.join(lost)}",
            f"no {', '.join(lost)}",
            subject="bases",
        )
