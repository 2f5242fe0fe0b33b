"""What preflight tells: a verdict, a row for each device, and everything that was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.errors import Refused
from harness.preflight._check import Scene
from harness.preflight._owners import Owner, OwnerKind
from harness.preflight.facts import Census, Device
from harness.preflight.verdict import Finding, Verdict, worst


@dataclass(frozen=True)
class Row:
    """One device, or one slice, for the table.

    Attributes:
        device: NVML's index.
        uuid: The device's, or the slice's.
        name: Model.
        used: Bytes in use; None where it was not told.
        total: Bytes.
        pid: Of the first holder; None where nobody is listed.
        user: Who runs it; empty where it cannot be seen.
        command: Its command line; empty where it cannot be seen.
        age: Seconds since its start.
        verdict: What holds for this device alone.
        next: What to do about it.
        used_by_engine: Whether the engine would use it.
    """

    device: int
    uuid: str
    name: str
    used: int | None
    total: int | None
    pid: int | None
    user: str
    command: str
    age: float | None
    verdict: Verdict
    next: str
    used_by_engine: bool


@dataclass(frozen=True)
class Report:
    """The outcome.

    Attributes:
        verdict: For the machine.
        rows: One a device.
        findings: What the checks found, in their order; those with CLEAN are worth knowing.
        census: The facts that they were made of.
        seconds: How long it took.
    """

    verdict: Verdict
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    census: Census
    seconds: float

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What stands against a start."""
        return tuple(f for f in self.findings if f.verdict is not Verdict.CLEAN)

    def require_clean(self) -> None:
        """Refuse a start on a box that is not clean.

        Raises:
            Refused: ``preflight.dirty`` or ``preflight.unknown``.
        """
        if self.verdict is Verdict.CLEAN:
            return
        first = max(self.problems, key=lambda f: f.verdict is self.verdict)
        shown = "; ".join(map(str, self.problems))
        raise Refused(
            f"preflight.{self.verdict.lower()}",
            expected="a box on which an engine can be started",
            found=shown,
            where="this machine" if first.device is None else f"GPU {first.device}",
            next=f"{first.next or 'harness preflight'}; or leave a check out by its id",
            findings=self.problems,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "verdict": self.verdict,
            "devices": [asdict(row) for row in self.rows],
            "findings": [finding.to_json() for finding in self.findings],
            "driver": self.census.driver,
            "seconds": round(self.seconds, 3),
        }


def report(scene: Scene, findings: Sequence[Finding], *, seconds: float) -> Report:
    """Make the report of what was found."""
    return Report(
        verdict=worst(finding.verdict for finding in findings),
        rows=tuple(_row(scene, device, findings) for device in scene.census.devices),
        findings=tuple(findings),
        census=scene.census,
        seconds=seconds,
    )


def _row(scene: Scene, device: Device, findings: Sequence[Finding]) -> Row:
    target = next((t for t in scene.targets if t.device.index == device.index), None)
    memory = device.memory if target is None else target.memory
    mine = [f for f in findings if f.device == device.index and f.verdict is not Verdict.CLEAN]
    verdict = worst(finding.verdict for finding in mine)
    first = next((finding for finding in mine if finding.verdict is verdict), None)
    known = scene.owners[device.index]
    owner = known[0] if known else Owner(OwnerKind.NONE)
    facts = owner.facts
    return Row(
        device=device.index,
        uuid=target.slice.uuid if target and target.slice else device.uuid,
        name=device.name,
        used=memory.used if memory else None,
        total=memory.total if memory else None,
        pid=owner.pid,
        user=facts.user if facts else "",
        command=facts.command if facts else "",
        age=round(facts.age, 1) if facts else None,
        verdict=verdict,
        next=first.next if first else "",
        used_by_engine=target is not None,
    )
