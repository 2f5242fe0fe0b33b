"""``docs/compatibility.md``, made from evidence and recorded surfaces and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from packaging.version import Version

from harness.gate.evidence import CANNOT_RUN, FAILED, PASSED, Evidence, Proof
from harness.gate.scale import Rung
from harness.patches import PATCHES, Status
from harness.seams import Consumer, Surface, bind

_HEAD = """# Tested pairs

What was run together, how far, and what came out. A pair is vLLM with a torch, a transformers, a
Python and a device; where speculators took part, it is named. `error` is the largest relative
error of a depth against Hugging Face transformers in float32 (the limit is 1e-5).

Rungs: `cpu` is a real engine with a tiny Kimi-K2.5, `gpu` is `pytest -m gpu` with a slice of the
real width, `full` with the whole model. What is not in the first table was not run.
"""

_TAIL = """
*Made from `fixtures/evidence` and `fixtures/surfaces` by `harness evidence table`; do not edit.*
"""
_CONSUMERS = (
    (Consumer.SPECULATORS_0_3, "speculators 0.3.0 as it is"),
    (Consumer.SPECULATORS_0_4, "speculators 0.4.0 as it is"),
)
_NATIVE_SINCE = Version("0.17.0")
_WORDS = {PASSED: "passed", FAILED: "**failed**", CANNOT_RUN: "cannot run"}


def page(evidence: Sequence[Evidence], surfaces: Sequence[Surface]) -> str:
    """Return the page.

    Args:
        evidence: All of it, sorted as ``read_all`` does.
        surfaces: The recorded releases, oldest first.
    """
    parts = (
        _HEAD,
        "\n## Proved by running\n\n",
        _table(_PAIR, map(_pair_row, _newest(evidence))),
        "\n## Known bad\n\n",
        _bad(evidence, surfaces),
        "\n## Could not run\n\n",
        "Nothing is proved of these and nothing refuted.\n\n",
        "".join(_said(evidence, CANNOT_RUN)) or "Nothing.\n",
        "\n## What had to be done\n\n",
        _done(evidence),
        "\n## Not proved\n\n",
        "".join(f"- {line}\n" for line in not_proved(evidence, surfaces)),
        "\n## By the release's files alone\n\n",
        "Calls bound to each recorded release, and what it says of itself; nothing was run.\n\n",
        _table(_STATIC, (_static_row(one, evidence) for one in surfaces)),
        _TAIL,
    )
    return "".join(parts)


@dataclass(frozen=True)
class _Row:
    """One capture on one pair."""

    evidence: Evidence
    proof: Proof


def _newest(evidence: Iterable[Evidence]) -> list[_Row]:
    """Return a row for each pair, rung and capture: the newest where there are several."""
    rows: dict[tuple[str, ...], _Row] = {}
    for one in evidence:
        for proof in one.proofs:
            pair = one.pair
            versions = (pair.vllm, pair.dist, pair.torch, pair.transformers, pair.speculators)
            key = (*versions, pair.hardware, one.rung, proof.capture)
            held = rows.get(key)
            if held is None or held.evidence.date <= one.date:
                rows[key] = _Row(one, proof)
    return sorted(rows.values(), key=_order)


def _order(row: _Row) -> tuple[Version, str, int, str]:
    pair = row.evidence.pair
    return pair.release, pair.device, list(Rung).index(row.evidence.rung), row.proof.capture


_PAIR = (
    *("vLLM", "device", "torch", "transformers", "Python", "speculators", "capture"),
    *("outcome", "error", "rows", "rung", "date"),
)


def _pair_row(row: _Row) -> tuple[str, ...]:
    pair, proof = row.evidence.pair, row.proof
    error, rows = proof.figures.get("max_rel_err"), proof.figures.get("rows")
    return (
        pair.vllm if pair.dist == "vllm" else f"{pair.vllm} (cpu)",
        pair.hardware,
        pair.torch or "-",
        pair.transformers or "-",
        pair.python or "-",
        pair.speculators or "-",
        proof.capture,
        _WORDS[proof.outcome],
        "-" if error is None else f"{error:.1e}",
        "-" if rows is None else f"{rows - proof.figures.get('wrong_rows', 0)} of {rows}",
        row.evidence.rung,
        row.evidence.date,
    )


def _bad(evidence: Sequence[Evidence], surfaces: Sequence[Surface]) -> str:
    lines = _said(evidence, FAILED)
    for consumer, name in _CONSUMERS:
        lines += [f"- {name}, {text}\n" for text in _refusals(surfaces, consumer)]
    return "".join(lines) or "Nothing.\n"


def _said(evidence: Sequence[Evidence], outcome: str) -> list[str]:
    """Return the reasons of the rows of one outcome, a line each."""
    found = []
    for row in _newest(evidence):
        pair = row.evidence.pair
        if row.proof.outcome == outcome:
            torch = f"torch {pair.torch}, " if pair.torch else ""
            where = f"vLLM {pair.vllm}, {pair.device}, {torch}{row.proof.capture}"
            found.append(f"- {where}: {row.proof.reason}\n")
    return found


def _refusals(surfaces: Sequence[Surface], consumer: Consumer) -> Iterator[str]:
    """Yield ranges of releases on which a consumer's calls fail for the same reasons."""
    start, last, reasons = "", "", ""
    for surface in (*surfaces, None):
        found = "" if surface is None else "; ".join(_reasons(surface, consumer))
        if found != reasons:
            if reasons:
                span = start if start == last else f"{start} to {last}"
                yield f"vLLM {span}: {reasons}"
            start, reasons = "" if surface is None else surface.release, found
        last = "" if surface is None else surface.release


def _reasons(surface: Surface, consumer: Consumer) -> list[str]:
    return sorted({f"`{one.seam}`: {one.reason}" for one in bind(surface, [consumer])})


def _done(evidence: Iterable[Evidence]) -> str:
    lines = []
    for one in evidence:
        if one.done:
            where = f"{one.pair.vllm} on {one.pair.hardware} ({one.rung}, {one.date})"
            lines.append(f"- vLLM {where}: {'; '.join(one.done)}\n")
    return "".join(dict.fromkeys(lines)) or "Nothing.\n"


Seen = Callable[[Evidence], bool]
_CLAIMS: tuple[tuple[str, Seen], ...] = (
    ("consumer Blackwell (sm_120)", lambda one: "RTX PRO" in one.pair.hardware),
    (
        "tensor parallel size 8",
        lambda one: int(one.figures.get("tensor_parallel_size", 0)) >= 8,
    ),
    ("the real weights of Kimi-K2.5", lambda one: one.rung is Rung.FULL),
)


def not_proved(evidence: Sequence[Evidence], surfaces: Sequence[Surface]) -> Iterator[str]:
    """Yield what no evidence shows, a phrase each."""
    for device, words in (("cuda", "on a GPU"), ("cpu", "on a CPU")):
        for capture in ("patched", "native"):
            yield from _beyond(evidence, surfaces, device, capture, words)
    for words, seen in _CLAIMS:
        if not any(seen(one) and _passed(one) for one in evidence):
            yield words


def _beyond(
    evidence: Sequence[Evidence],
    surfaces: Sequence[Surface],
    device: str,
    capture: str,
    words: str,
) -> Iterator[str]:
    proved = {
        one.pair.vllm
        for one in evidence
        if one.pair.device == device
        and (proof := one.proof(capture)) is not None
        and proof.outcome == PASSED
    }
    every = [one.release for one in surfaces]
    open = [one for one in every if one not in proved]
    if capture == "native":
        open = [one for one in open if Version(one) >= _NATIVE_SINCE]
    if open and proved:
        yield f"{capture} capture {words} with vLLM {_spans(open, every)}"
    elif open:
        yield f"{capture} capture {words} with any vLLM"


def _spans(chosen: Sequence[str], every: Sequence[str]) -> str:
    """Write releases as runs: ``0.12.0 to 0.15.1, 0.17.0``."""
    runs: list[list[str]] = []
    for before, release in zip(("", *every), every, strict=False):
        if release not in chosen:
            continue
        if runs and runs[-1][-1] == before:
            runs[-1].append(release)
        else:
            runs.append([release])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _passed(one: Evidence) -> bool:
    return any(proof.outcome == PASSED for proof in one.proofs)


_STATIC = (
    *("vLLM", "0.3.0 binds", "0.4.0 binds", "patches of 0.3.0"),
    *("Kimi's text model", "native capture takes", "proved"),
)


def _static_row(surface: Surface, evidence: Sequence[Evidence]) -> tuple[str, ...]:
    states = [patch.state(surface).status for patch in PATCHES]
    needed = states.count(Status.NEEDED)
    broken = states.count(Status.BROKEN)
    own = {
        f"{proof.capture} ({one.rung})"
        for one in evidence
        if one.pair.vllm == surface.release
        for proof in one.proofs
        if proof.outcome == PASSED
    }
    return (
        surface.release,
        *("yes" if not bind(surface, [consumer]) else "no" for consumer, _ in _CONSUMERS),
        f"{needed} needed" + (f", {broken} broken" if broken else ""),
        surface.probe("kimi.language-model"),
        surface.probe("native.targets"),
        ", ".join(sorted(own)) or "-",
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())
