"""What ``harness gate`` refuses before anything is read."""

from __future__ import annotations

from pathlib import Path

from harness.errors import UsageError
from harness.gate.candidate import version_named
from harness.gate.scale import Rung

_OF_BISECT = (Rung.STATIC, Rung.CPU)


def alone(beside: list[str], wanted: tuple[Rung, ...]) -> None:
    """Refuse what --bisect would not read: no report is better than one that is waited for."""
    unread = [rung for rung in wanted if rung not in _OF_BISECT]
    if unread:
        beside = [*beside, f"--rungs {','.join(unread)}"]
    if beside:
        raise UsageError(
            "bisect.not-alone",
            expected="--bisect GOOD BAD with --check and --rungs static or cpu only",
            found=", ".join(beside),
            where="harness gate",
            next="leave these out, or leave --bisect out",
        )


def read_by_a_rung(
    name: str, given: object, by: tuple[Rung, ...], wanted: tuple[Rung, ...]
) -> None:
    """Refuse what no rung would read: another model would be proved than the one that was named."""
    if given is None or set(by) & set(wanted):
        return
    other = "; for rung gpu: --slice" if name == "--model" else ""
    raise UsageError(
        "gate.option-unread",
        expected=f"{name} beside rung {' or '.join(by)}{other}",
        found=f"{name} {given} with --rungs {','.join(wanted)}",
        where="harness gate",
        next=f"add the rung to --rungs, or leave {name} out",
    )


def told_of_a_source(candidate: str | None, release: str | None) -> None:
    """Refuse a version for what is a version already."""
    if release is not None and candidate is not None and version_named(candidate):
        raise UsageError(
            "gate.release-twice",
            expected="--release beside files that tell no version",
            found=f"--release {release} beside the release {candidate}",
            where="harness gate",
            next=f"harness gate {candidate}",
        )


def told_with_bisect(check: str | None) -> None:
    """Refuse a check that only a bisection would ask."""
    if check is not None:
        raise UsageError(
            "gate.check-alone",
            expected="--check beside --bisect GOOD BAD",
            found=f"--check {check} without it",
            where="harness gate",
            next=f"harness gate --bisect GOOD BAD --check {check}",
        )


def shown_in_a_report(prompts: bool, report: Path | None) -> None:
    """Refuse prompts for a report that is not written."""
    if prompts and report is None:
        raise UsageError(
            "gate.option-unread",
            expected="--report-prompts beside --report FILE",
            found="--report-prompts without it",
            where="harness gate",
            next="add --report FILE.html, or leave --report-prompts out",
        )


def rungs_of(text: str) -> tuple[Rung, ...]:
    """Return the rungs that are named, parted by commas; none is an error too."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return tuple(Rung(part) for part in parts or [text])
    except ValueError as error:
        raise UsageError(
            "gate.no-such-rung",
            expected=", ".join(Rung),
            found=text,
            where="--rungs",
            next="--rungs static,mock",
        ) from error
