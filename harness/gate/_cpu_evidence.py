"""What rung cpu saw, as evidence."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path

from harness.engine_facts import Inspection
from harness.errors import HarnessError
from harness.gate.digests import code_digest, patch_digest
from harness.gate.engine_suite import CaptureFigures
from harness.gate.environment import Made
from harness.gate.evidence import CANNOT_RUN, FAILED, PASSED, Evidence, Pair, Proof, today
from harness.gate.scale import Rung
from harness.recipe import EngineFacts
from harness.seams import Surface

WHAT = (
    "engine suite of rung cpu: tiny Kimi-K2.5, float32, all depths, 13 prompts twice, canary and "
    "every row against Hugging Face transformers"
)


def evidence_of(
    seen: Inspection,
    surface: Surface,
    made: Made,
    plain: str,
    found: Sequence[CaptureFigures],
) -> Evidence:
    """Return the evidence of a suite that ran.

    Args:
        seen: The candidate's environment.
        surface: What the candidate offers.
        made: How the environment came about.
        plain: Why the text model alone was run; empty for Kimi-K2.5 whole.
        found: One entry a capture.
    """
    versions = dict(seen.engine.versions)
    pair = Pair(
        vllm=surface.release,
        dist=seen.engine.dist,
        device=seen.platform.device,
        hardware=hardware(),
        torch=versions.get("torch", ""),
        transformers=versions.get("transformers", ""),
        python=seen.python,
    )
    done = [*made.done]
    if plain:
        done.append(f"the text model alone (DeepseekV3ForCausalLM): {plain}")
    done += settings_done(seen.engine, wrapper=not plain)
    figures = {"environment": {"seconds": round(made.seconds), "bytes": made.bytes}}
    return Evidence(
        file="",
        date=today(),
        rung=Rung.CPU,
        what=WHAT,
        pair=pair,
        proofs=tuple(map(proof_of, found)),
        done=tuple(done),
        hashes={
            "surface": surface.digest,
            "package": _package(seen.package),
            "patches": patch_digest(),
            "code": code_digest(),
        },
        figures=figures if made.bytes else {},
    )


def settings_done(engine: EngineFacts, *, wrapper: bool) -> list[str]:
    """Say which of the recipe's settings this release needs and others do not."""
    words = {
        "cpu_ops_compiled": "torch's own norm instead of a kernel that is wrong for latent rows",
        "cpu_wants_libraries": "libtcmalloc and libiomp named in LD_PRELOAD, which it insists on",
    }
    if wrapper:
        words["wrapper_needs_processor"] = (
            "the checkpoint's image processor and tokenizer, which it builds for text too"
        )
    done = [text for probe, text in words.items() if engine.has(probe)]
    if not engine.has("cpu_cache_bytes"):
        done.append("VLLM_CPU_KVCACHE_SPACE, the only way to size its cache")
    return done


def proof_of(figures: CaptureFigures) -> Proof:
    """Return what one capture's figures prove."""
    outcome = {"passed": PASSED, "failed": FAILED, "refused": CANNOT_RUN}[figures.status]
    body = figures.to_json()
    if figures.rows:
        body["dtype"] = "float32"
    for name in ("capture", "status", "problem"):
        body.pop(name, None)
    return Proof(figures.capture, outcome, figures.problem, body)


def cannot_run(pair: Pair, error: HarnessError) -> Evidence:
    """Return the evidence of a pair that did not get so far, with the reason."""
    failure = error.failure
    reason = f"{failure.id}: expected {failure.expected}, found {failure.found}"
    return Evidence(
        file="",
        date=today(),
        rung=Rung.CPU,
        what=WHAT,
        pair=pair,
        proofs=(Proof("patched", CANNOT_RUN, reason),),
        hashes={"patches": patch_digest(), "code": code_digest()},
    )


def _package(package: Path | None) -> str:
    """Return ``sha256:...`` over vLLM's Python files as installed, names included."""
    digest = hashlib.sha256()
    for path in sorted((package or Path("/nowhere")).rglob("*.py")):
        digest.update(f"{path.relative_to(package or path)}\0".encode())
        digest.update(path.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def hardware() -> str:
    """Return this machine's processor in words."""
    return f"{platform.machine()} CPU"
