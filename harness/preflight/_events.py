"""Make facts of what the probe printed, however early it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.preflight.facts import (
    BEYOND,
    CRASHED,
    STUCK,
    Census,
    Cuda,
    Device,
    Health,
    Holder,
    Memory,
    Problem,
    Slice,
)

Event = Mapping[str, Any]

_HEALTH = tuple(Health.__dataclass_fields__)


@dataclass
class _Parts:
    """What was said of one device so far."""

    facts: dict[str, Any] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    mig: dict[str, Any] = field(default_factory=dict)
    samples: list[Event] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    done: bool = False

    def add(self, event: Event) -> None:
        kind = event["event"]
        if kind == "sample":
            self.samples.append(event)
        elif kind == "done":
            self.done = True
        else:
            {"device": self.facts, "health": self.health, "mig": self.mig}[kind].update(event)
        for said in event.get("problems", ()):
            problem = Problem(said["query"], said["code"], said["text"])
            if problem not in self.problems:
                self.problems.append(problem)


def build(
    events: Iterable[Event], *, broken: str = "", lost: Mapping[int, str] | None = None
) -> Census:
    """Return the census that events tell.

    Args:
        events: What the probe printed, perhaps of several runs; a later run replaces an
            earlier one's word on a device.
        broken: How the last run ended too early.
        lost: Devices that ended a run, and how.
    """
    devices: dict[int, _Parts] = {}
    system: dict[str, Any] = {}
    failure: Problem | None = None
    peers: list[tuple[int, int, int]] = []
    cuda: Cuda | None = None
    for event in events:
        kind = event["event"]
        if kind == "failed":
            failure = Problem(event["query"], event["code"], event["text"])
        elif kind == "system":
            system = dict(event)
        elif kind == "peers":
            peers = [(a, b, status) for a, b, status in event["pairs"]]
        elif kind == "cuda":
            cuda = Cuda(event["code"], event["count"], event["text"])
        elif kind == "at":
            devices[event["index"]] = _Parts()
        elif kind != "end":
            devices[event["index"]].add(event)
    for index, how in (lost or {}).items():
        devices.setdefault(index, _Parts()).problems.append(Problem("device", BEYOND, how))
    return Census(
        driver=system.get("driver", ""),
        cuda_driver=system.get("cuda"),
        count=system.get("count"),
        devices=tuple(
            _device(index, parts, ended_early=bool(broken))
            for index, parts in sorted(devices.items())
        ),
        peers=tuple(peers),
        cuda=cuda,
        failure=failure,
        broken=broken,
        problems=tuple(
            Problem(said["query"], said["code"], said["text"])
            for said in system.get("problems", ())
        ),
    )


def _device(index: int, parts: _Parts, *, ended_early: bool) -> Device:
    problems = list(parts.problems)
    if not parts.done and not problems:
        how = "not asked to the end: the probe ended" if ended_early else STUCK
        problems.append(Problem("device", BEYOND, how))
    last: Event = parts.samples[-1] if parts.samples else {}
    seen = [said for said in parts.samples if said["memory"]]
    mode = parts.mig.get("mode") or (0, 0)
    return Device(
        index=index,
        uuid=parts.facts.get("uuid", ""),
        name=parts.facts.get("name", ""),
        bus=parts.health.get("bus", ""),
        minor=parts.health.get("minor"),
        memory=_memory(last.get("memory")),
        samples=tuple(said["memory"]["used"] for said in seen),
        seconds=seen[-1]["at"] - seen[0]["at"] if seen else 0.0,
        holders=tuple(Holder(pid, kind, used) for pid, kind, used in last.get("holders", ())),
        mig=(bool(mode[0]), bool(mode[1])),
        slices=tuple(
            Slice(uuid, _memory(last["slices"][number] if last else None), _used(seen, number))
            for number, uuid in enumerate(parts.mig.get("uuids", ()))
        ),
        health=Health(**{name: parts.health.get(name) for name in _HEALTH}),
        problems=tuple(problems),
    )


def _memory(said: Mapping[str, Any] | None) -> Memory | None:
    return Memory(said["total"], said["used"], said["reserved"]) if said else None


def _used(samples: Iterable[Event], number: int) -> tuple[int, ...]:
    parts = (said["slices"][number] for said in samples)
    return tuple(part["used"] for part in parts if part)


def crashed(how: str) -> str:
    """Return how a device that ended a run is described."""
    return f"{CRASHED}: {how}"
