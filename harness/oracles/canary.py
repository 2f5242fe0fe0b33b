"""The canary: known prompts through the loaded engine before anything is written.

The engine reports figures; this module makes the prompts and judges the figures.
Three prompts, two of them equally long (so that a swap shows), one longer than the
token budget where the backend takes such prompts in chunks. No two prompts ever
have one token at one position, so each row has one owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from harness.oracles.finding import Finding

_STRIDE = 7919  # a prime larger than most steps through a vocabulary; any odd prime does


@dataclass(frozen=True)
class LogprobLimit:
    """How far rebuilt log-probabilities may be from the engine's own.

    Both sides run the same norm and head on the same device. In float32 on CPU they
    came out equal (0.0 over 59 tokens on vLLM 0.32). In bfloat16 the head may round
    differently when it sees another number of rows at once, so single tokens get more room
    and the mean stays tight.

    Attributes:
        max_err: Limit for the worst token, natural log.
        mean_err: Limit for the mean over the prompt, natural log.
    """

    max_err: float
    mean_err: float


LIMITS: Mapping[str, LogprobLimit] = {
    "float32": LogprobLimit(max_err=1e-4, mean_err=1e-5),
    "bfloat16": LogprobLimit(max_err=0.25, mean_err=2e-2),
}


def canary_prompts(
    *, vocab_size: int, forbidden: frozenset[int], longest: int, token_budget: int, chunked: bool
) -> list[list[int]]:
    """Make the canary's prompts.

    Args:
        vocab_size: Ids are below this.
        forbidden: Ids that must not be sent.
        longest: The longest prompt the engine takes.
        token_budget: Tokens of one scheduler step.
        chunked: Whether a prompt longer than the budget is allowed.

    Returns:
        Three prompts; the first two are equally long.
    """
    allowed = [token for token in range(vocab_size) if token not in forbidden]
    # Only the low part of a large vocabulary: special tokens sit at the top.
    allowed = allowed[: max(len(allowed) * 9 // 10, 3)]
    short = max(1, min(33, longest))
    long = min(token_budget + 17 if chunked else 3 * short, longest)
    step = _coprime(_STRIDE, len(allowed))
    return [
        [
            allowed[(step * place + number * (len(allowed) // 3)) % len(allowed)]
            for place in range(length)
        ]
        for number, length in enumerate((short, short, long))
    ]


def judge(
    report: Sequence[Mapping[str, Any]], *, depths: Sequence[int], dtype: str
) -> list[Finding]:
    """Judge the engine's canary report.

    Args:
        report: One entry a prompt: ``tokens``, ``depths``, ``logprobs``, ``faults``.
        depths: The depth each file column must be.
        dtype: ``float32`` or ``bfloat16``.

    Returns:
        Every fault; empty when the canary lives.
    """
    findings: list[Finding] = []
    limit = LIMITS[dtype]
    for number, entry in enumerate(report):
        name = f"canary {number} ({entry['tokens']} tokens)"
        columns = entry["depths"] or []
        if [column["depth"] for column in columns] != list(depths):
            findings.append(Finding(name, "witness", f"depths {list(depths)}", f"{columns}"))
        for column in columns:
            findings += _judge_column(name, column)
        error = entry["logprobs"]
        if error["tokens"] < 1:
            findings.append(
                Finding(name, "logprobs", "at least one token compared", "none: it has no next")
            )
        # Written so that NaN fails.
        if not (error["max_err"] <= limit.max_err and error["mean_err"] <= limit.mean_err):
            findings.append(
                Finding(
                    name,
                    "logprobs",
                    "depth L rebuilds the engine's prompt log-probabilities within "
                    f"{limit.max_err:g} (mean {limit.mean_err:g})",
                    f"{error['max_err']:.3g} (mean {error['mean_err']:.3g})",
                )
            )
        findings += [content_finding(name, fault) for fault in entry["faults"]]
    return findings


def judge_logprobs(name: str, error: Mapping[str, float], *, dtype: str) -> list[Finding]:
    """Judge the spot check of one sample during a run; same limits as the canary."""
    limit = LIMITS[dtype]
    if error["max_err"] <= limit.max_err and error["mean_err"] <= limit.mean_err:
        return []
    return [
        Finding(
            name,
            "logprobs",
            f"within {limit.max_err:g} (mean {limit.mean_err:g}) of the engine's own",
            f"{error['max_err']:.3g} (mean {error['mean_err']:.3g})",
        )
    ]


def content_finding(name: str, fault: Mapping[str, Any]) -> Finding:
    """Word a fault that the spool writer saw in a sample's rows."""
    check = str(fault["check"])
    if check == "equal-columns":
        found = f"columns {fault['first']} and {fault['column']} are equal in all rows"
        return Finding(name, check, "no two layers with equal rows", found)
    found = f"{fault['count']} rows in column {fault['column']}, first row {fault['first']}"
    return Finding(name, check, f"no row that fails '{check}'", found)


def _judge_column(name: str, column: Mapping[str, Any]) -> list[Finding]:
    if column["written"] != column["rows"]:
        # Nothing can be compared row by row, and nothing else is said of this column.
        return [Finding(name, "rows", f"{column['rows']} rows", f"{column['written']}")]
    expected = f"depth {column['depth']} equals the stream seen in the same forward"
    if column["unseen"]:
        found = f"{column['unseen']} of {column['rows']} rows never passed through the model"
        return [Finding(name, "witness", expected, found)]
    if column["wrong"]:
        found = (
            f"{column['wrong']} of {column['rows']} rows differ (up to {column['max_rel_err']:.3g})"
        )
        if column["looks_like"] is not None:
            found += f"; they equal depth {column['looks_like']}"
        return [Finding(name, "witness", expected, found)]
    return []


def _coprime(step: int, modulus: int) -> int:
    """Return a step near ``step`` whose multiples run through every residue."""
    step = step % modulus or 1
    while gcd(step, modulus) != 1:
        step += 1
    return step
