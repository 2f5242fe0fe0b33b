"""What a result was seen on: the GPUs as nvidia-smi says, versions, the commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_FIELDS = ("name", "driver_version", "memory.total", "memory.used")
_PACKAGES = ("vllm", "torch", "transformers", "compressed-tensors", "safetensors", "speculators")
_VERSIONS = f"""
import json, platform
from importlib import metadata
found = {{}}
for name in {_PACKAGES!r}:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(found | {{"python": platform.python_version()}}))
"""
_PATIENCE = 60


def gpus() -> list[dict[str, str]]:
    """Return the GPUs and their memory in MiB, as nvidia-smi says; empty where there is none."""
    query = ["nvidia-smi", "--query-gpu=" + ",".join(_FIELDS), "--format=csv,noheader,nounits"]
    rows = _ask(query).splitlines()
    found = [
        dict(zip(_FIELDS, (part.strip() for part in row.split(",")), strict=False)) for row in rows
    ]
    return [one for one in found if len(one) == len(_FIELDS)]


def hardware(found: Sequence[Mapping[str, str]]) -> str:
    """Return the machine in words, as evidence names it."""
    kinds = Counter(one["name"] for one in found)
    cards = ", ".join(f"{count} x {name}" for name, count in kinds.items()) or "no GPU"
    return f"{cards}, {len(os.sched_getaffinity(0))} CPU cores"


def versions(python: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that an interpreter sees, without importing anything big."""
    try:
        found = json.loads(_ask([str(python), "-c", _VERSIONS], env=env))
    except ValueError:
        return {}
    return {str(name): str(version) for name, version in found.items()}


def commit(checkout: Path) -> str | None:
    """Return the commit of a checkout, marked where files differ; None where it is not known."""
    found = _ask(["git", "-C", str(checkout), "rev-parse", "HEAD"]).strip()
    changed = _ask(["git", "-C", str(checkout), "status", "--porcelain", "-uno"]).strip()
    return (found + " with changes" if changed else found) or None


def system() -> dict[str, Any]:
    """Return what is known of the machine beside its GPUs."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "system": platform.platform(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / (1 << 30), 1),
    }


def _ask(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Return what a program prints, nothing where it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            env=env,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
