"""The frozen object of all settings, and how it is resolved."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from harness.settings._definitions import TINY_LAYERS, definitions

COMMAND_LINE: Final = "command line"
ENVIRONMENT: Final = "environment"
INI: Final = "ini"
LEASE: Final = "lease"
DEFAULT: Final = "default"
SOURCES: Final = (COMMAND_LINE, ENVIRONMENT, INI, LEASE, DEFAULT)
"""Where a value may come from, strongest first."""


@dataclass(frozen=True)
class Settings:
    """Every setting of the pytest plugin, with its default; :func:`definitions` says what it means.

    ``sources`` maps the name of each setting that was given to where its value came from.
    """

    model: Path | None = None
    layers: str = "speculators-0.9"
    dialect: str = "vllm"
    layout: str = "training"
    capture: str = "auto"
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = 0.85
    python: Path = Path(sys.executable)
    prompts: Path | None = None
    out: Path | None = None
    preflight_skip: str = "none"
    skip_gate: bool = False
    rehearse: bool = False
    attach: str | None = None
    baselines: Path | None = None
    record_baseline: Path | None = None
    require_engine: bool = False
    require_gpu: bool = False
    start_deadline: float = 60.0
    load_deadline: float = 2400.0
    first_batch_deadline: float = 1800.0
    batch_deadline: float = 1800.0
    files_deadline: float = 120.0
    shutdown_deadline: float = 30.0
    stall_deadline: float = 300.0
    supervise: str = "kill,code=warn"
    sources: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )

    def source(self, name: str) -> str:
        """Return where the value of a setting came from, one of :data:`SOURCES`."""
        return self.sources.get(name, DEFAULT)

    def explain(self) -> list[str]:
        """Return one line for each source that gave a value: ``source: name=value ...``."""
        lines = []
        for source in SOURCES:
            names = [s.name for s in definitions() if self.source(s.name) == source]
            shown = [f"{name}={_show(getattr(self, name))}" for name in names]
            if shown:
                lines.append(f"{source}: " + " ".join(shown))
        return lines


def resolve(
    *,
    command_line: Mapping[str, str | None],
    environment: Mapping[str, str],
    ini: Mapping[str, str | None],
    here: Path,
    ini_file: Path | None = None,
) -> Settings:
    """Resolve every setting.

    Args:
        command_line: Setting name to the text given there; None or missing: not given.
        environment: The process's environment; an empty variable counts as not set.
        ini: Setting name to the text in the ini file.
        here: Where relative paths of command line and environment start.
        ini_file: The ini file, for messages; its relative paths start in its folder.

    Raises:
        UsageError: ``settings.bad-value``.
    """
    ini_base = ini_file.parent if ini_file else here
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in definitions():
        name = setting.name
        given = (
            (COMMAND_LINE, command_line.get(name), setting.option, here),
            (ENVIRONMENT, environment.get(setting.variable) or None, setting.variable, here),
            (INI, ini.get(name), f"{setting.ini} in {ini_file or 'the ini file'}", ini_base),
        )
        for source, text, where, base in given:
            if text is not None:
                values[name] = setting.parse(text, where=where, base=base)
                sources[name] = source
                break
    if "layers" not in values and values.get("model") is None:
        values["layers"] = TINY_LAYERS
    return Settings(**values, sources=MappingProxyType(sources))


def _show(value: Any) -> str:
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return shlex.quote(str(value))
