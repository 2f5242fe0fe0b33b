"""Whether one consumer works on one release: what stands against it, and what nobody knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.patches import PATCHES, Patch, State, Status
from harness.seams import Consumer, Finding, Surface, bind
from harness.standing._needs import needs_of


@dataclass(frozen=True)
class Standing:
    """One consumer on one release.

    Attributes:
        findings: Its calls that do not get through, patches not counted.
        repaired: Of these, the ones that a fitting patch makes good, with the patch's id.
        problems: What keeps it from working, a sentence each.
        doubts: What nobody knows, a sentence each.
        probes: Probes behind the problems and doubts: name -> whether it is a doubt.
    """

    findings: tuple[Finding, ...]
    repaired: Mapping[Finding, str]
    problems: tuple[str, ...]
    doubts: tuple[str, ...]
    probes: Mapping[str, bool]

    @property
    def open(self) -> tuple[Finding, ...]:
        """Findings that no patch makes good."""
        return tuple(one for one in self.findings if one not in self.repaired)

    @property
    def works(self) -> bool:
        """Whether nothing is known to stand against it."""
        return not self.problems


def patch_states(surface: Surface) -> dict[Patch, State]:
    """Return what each patch is to a release."""
    return {patch: patch.state(surface) for patch in PATCHES}


def standing(surface: Surface, consumer: Consumer, states: Mapping[Patch, State]) -> Standing:
    """Judge one consumer; speculators 0.3.0 with the patches, all others as they are."""
    findings = bind(surface, [consumer])
    patched = consumer is Consumer.SPECULATORS_0_3
    repaired = _repaired(findings, states) if patched else {}
    problems = [one.reason_at_seam for one in findings if one not in repaired]
    doubts: list[str] = []
    probes: dict[str, bool] = {}
    for need in needs_of(consumer):
        said = need.judge(surface)
        if said == "works":
            continue
        probes[need.probe] = said == "unknown"
        text = f"{need.probe} is {surface.probe(need.probe)!r}"
        (doubts if said == "unknown" else problems).append(text)
    if patched:
        for patch, state in states.items():
            if state.status is Status.BROKEN:
                text = f"the patch {patch.id} does not fit: {state.reason}"
                (doubts if state.unsure else problems).append(text)
    return Standing(findings, repaired, tuple(problems), tuple(doubts), probes)


def _repaired(findings: Iterable[Finding], states: Mapping[Patch, State]) -> dict[Finding, str]:
    found: dict[Finding, str] = {}
    for finding in findings:
        for patch, state in states.items():
            fits = state.status is Status.NEEDED
            if fits and patch.repairs.get(finding.seam) == finding.key:
                found[finding] = patch.id
    return found
