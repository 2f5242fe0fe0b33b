"""One baseline: recorded runs of one key, or figures that are only shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from harness.baseline._bounds import LARGEST_SPREAD, LEAST_RUNS
from harness.baseline._series import Series, series
from harness.baseline.key import Key
from harness.errors import HarnessError, Refused

SCHEMA: Final = 1


class Origin(StrEnum):
    """Where figures come from."""

    MEASURED = "measured"
    REPORTED = "reported"


@dataclass(frozen=True)
class Baseline:
    """Figures of one key.

    Attributes:
        key: What they belong to.
        figures: Runs by the figure's name.
        origin: ``measured`` by the GPU lane, or ``reported`` by somebody.
        date: Day of the runs, ISO 8601; empty where nobody said.
        source: The command, file or text that they come from.
        seen: What the engine computed with; see :mod:`harness.baseline.seen`.
        load_seconds: Seconds of the engine's load; None where not measured.
        memory_bytes: Device memory in use with the engine loaded, one figure a device.
        note: What else a reader must know.
    """

    key: Key
    figures: Mapping[str, Series]
    origin: Origin = Origin.MEASURED
    date: str = ""
    source: str = ""
    seen: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    load_seconds: float | None = None
    memory_bytes: tuple[int, ...] = ()
    note: str = ""

    @property
    def problems(self) -> tuple[Refused, ...]:
        """Everything that keeps a floor from resting on this; empty for a baseline."""
        return tuple(_problems(self))

    @property
    def usable(self) -> bool:
        """Whether a floor may rest on it."""
        return not self.problems

    def series(self, name: str) -> Series | None:
        """Return a figure's runs; None where there are none, or none to rest a floor on."""
        return self.figures.get(name) if self.usable else None

    def to_json(self) -> dict[str, Any]:
        """Return the baseline as the JSON object that its file holds."""
        return {
            "schema": SCHEMA,
            "origin": str(self.origin),
            "date": self.date,
            "source": self.source,
            "key": self.key.to_json(),
            "figures": {name: list(found.runs) for name, found in self.figures.items()},
            "seen": dict(self.seen),
            "load_seconds": self.load_seconds,
            "memory_bytes": list(self.memory_bytes),
            "note": self.note,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Baseline:
        """Read what :meth:`to_json` gave; whether it may be a floor is another question.

        Raises:
            ValueError: It is broken, or of another schema.
        """
        if body.get("schema") != SCHEMA:
            raise ValueError(f"schema {body.get('schema')!r}; this version reads schema {SCHEMA}")
        try:
            return cls(
                key=Key.from_json(body["key"]),
                figures={name: series(name, runs) for name, runs in body["figures"].items()},
                origin=Origin(body["origin"]),
                date=_text(body["date"]),
                source=_text(body["source"]),
                seen={_text(name): _text(value) for name, value in body["seen"].items()},
                load_seconds=None if body["load_seconds"] is None else float(body["load_seconds"]),
                memory_bytes=tuple(int(size) for size in body["memory_bytes"]),
                note=_text(body["note"]),
            )
        except HarnessError as error:
            raise ValueError(f"{error.failure.where}: {error.failure.found}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def admit(baseline: Baseline) -> Baseline:
    """Return a baseline that a floor may rest on.

    Raises:
        Refused: ``baseline.reported``, ``baseline.unknown-key``, ``baseline.no-figures``,
            ``baseline.too-few-runs`` or ``baseline.spread``, with the runs.
    """
    for problem in baseline.problems:
        raise problem
    return baseline


def _problems(baseline: Baseline) -> Iterator[Refused]:
    if baseline.origin is not Origin.MEASURED:
        yield _refused("reported", "figures that were measured here", "reported ones", baseline)
        return
    if not baseline.figures:
        yield _refused("no-figures", "one figure or more", "none", baseline)
    for found in baseline.figures.values():
        runs = f"{found.name}: {found.show_runs()}"
        if len(found.runs) < LEAST_RUNS:
            count = f"{len(found.runs)} of {LEAST_RUNS}"
            yield _refused("too-few-runs", f"{LEAST_RUNS} runs", f"{count}; {runs}", baseline)
        if found.spread > LARGEST_SPREAD:
            wanted = f"runs within {LARGEST_SPREAD:.0%} of their median"
            yield _refused("spread", wanted, f"{found.spread:.1%}; {runs}", baseline)
    if unknown := baseline.key.unknown:
        yield _refused("unknown-key", "a key that is wholly known", ", ".join(unknown), baseline)


_NEXT = {
    "reported": "measure on that machine: pytest -m gpu --hs-record-baseline DIR",
    "unknown-key": "measure where they are known; a GPU's name needs nvidia-ml-py",
    "no-figures": "measure again",
    "too-few-runs": "measure more runs",
    "spread": "see that nothing else uses the machine, then measure again",
}


def _refused(id: str, expected: str, found: str, baseline: Baseline) -> Refused:
    return Refused(
        f"baseline.{id}",
        expected=expected,
        found=found,
        where=str(baseline.key),
        next=_NEXT[id],
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
