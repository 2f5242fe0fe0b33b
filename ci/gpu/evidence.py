"""The files of a bundle: reports, outputs, logs and figures, and what they are evidence of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bundle
import machine
import results
from sessions import Outcome, exit_code

_SCHEMA = 1  # harness/gate/evidence.schema.json
_DONE = "vLLM's CUDA wheel cut to the kernels of one GPU (ci/gpu/pack.py)"


@dataclass(frozen=True)
class Seen:
    """What a run knows of itself: words for the model, the pack, the machine around the tests."""

    what: str
    model: str
    command: str
    commit: str | None
    pack: Mapping[str, Any]
    versions: Mapping[str, str]
    before: Sequence[Mapping[str, str]]
    after: Sequence[Mapping[str, str]]


def files(outcomes: Sequence[Outcome], seen: Seen) -> dict[str, bytes]:
    """Return the content of a bundle by name, engine logs cut to their end."""
    found: dict[str, bytes] = {}
    figures: list[dict[str, Any]] = []
    runs = []
    for one in outcomes:
        output = one.output.read_bytes() if one.output.exists() else b""
        printed = list(results.figures(output.decode(errors="replace")))
        figures += [{"session": one.session.name, **line} for line in printed]
        runs.append(_run(one, seen, printed))
        found[f"{one.session.name}/output.txt"] = output
        for name, text in bundle.logs(one.temp).items():
            found[f"{one.session.name}/{name}"] = text
    found["junit.xml"] = results.merge([one.report for one in outcomes])
    found["figures.jsonl"] = "".join(json.dumps(line) + "\n" for line in figures).encode()
    found["machine.json"] = _json(_machine(seen))
    found["evidence.json"] = _json(_evidence(runs, seen, exit_code(outcomes)))
    return found


def _run(one: Outcome, seen: Seen, printed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = {"model": seen.model, "command": one.session.shown, "exit": one.code}
    return {**found, **results.summary(one.report), "figures": list(printed)}


def _evidence(runs: Sequence[Mapping[str, Any]], seen: Seen, code: int) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "date": datetime.now(UTC).date().isoformat(),
        "rung": "gpu",
        "what": seen.what,
        "pair": _pair(seen),
        "proofs": [_proof(runs, code)],
        "done": [_DONE],
        "hashes": {},
        "hardware": machine.hardware(seen.before),
        "versions": dict(seen.versions),
        "command": seen.command,
        "commit": seen.commit,
        "pack": seen.pack.get("sha256"),
        "exit": code,
        "runs": list(runs),
    }


def _pair(seen: Seen) -> dict[str, str]:
    found = {
        "vllm": seen.versions.get("vllm", "0").split("+")[0],
        "dist": "vllm",
        "device": "cuda",
        "hardware": machine.hardware(seen.before),
    }
    for name in ("torch", "transformers", "python", "speculators"):
        if name in seen.versions:
            found[name] = seen.versions[name]
    return found


def _proof(runs: Sequence[Mapping[str, Any]], code: int) -> dict[str, Any]:
    """Say it of the native capture: ``auto`` takes it on every release that is packed."""
    tests = sum(int(one.get("tests", 0)) for one in runs)
    if code == 0 and tests:
        return {"capture": "native", "outcome": "passed", "figures": {"tests": tests}}
    failed = [name for one in runs for name in one.get("failed", ())]
    reason = f"{len(failed)} of {tests} tests failed, exit {code}: {', '.join(failed[:5])}"
    return {"capture": "native", "outcome": "failed", "reason": reason, "figures": {"tests": tests}}


def _machine(seen: Seen) -> dict[str, Any]:
    return {
        **machine.system(),
        "gpus": {"before": list(seen.before), "after": list(seen.after)},
        "versions": dict(seen.versions),
        "commit": seen.commit,
        "pack": dict(seen.pack),
    }


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def write(target: Path, outcomes: Sequence[Outcome], seen: Seen) -> int:
    """Write the bundle; return its size in bytes."""
    return bundle.write(target, files(outcomes, seen))
