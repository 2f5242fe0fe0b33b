"""What the plugin prints: the header and a section of the summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest
from packaging.version import InvalidVersion, Version

from harness import __version__
from harness.plugin import _attach
from harness.plugin._gpus import GpuCount
from harness.plugin._keeper import EngineReport
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.engine_facts import Inspection

_SHOWN = ("torch", "transformers", "speculators")


def header(
    settings: Settings, found: Inspection | None, no_engine: str, gpus: GpuCount
) -> list[str]:
    """Return the header: versions, lane, GPUs, settings by source."""
    if found is None or no_engine:
        engine = f"no engine: {no_engine}"
    else:
        engine = f"{_versions(found)} (Python {found.python}, {settings.python})"
    return [
        f"harness: {__version__}, {engine}",
        f"harness lane: {_lane(found)}; {gpus}",
        *_attach.header(settings),
        *(f"harness settings, {line}" for line in settings.explain()),
    ]


def _versions(found: Inspection) -> str:
    engine = found.engine
    parts = [f"{engine.dist} {engine.vllm or 'of unknown version'}"]
    parts += [f"{name} {engine.versions[name]}" for name in _SHOWN if name in engine.versions]
    return ", ".join(parts)


def _lane(found: Inspection | None) -> str:
    if found is None or found.package is None:
        return "none"
    generation = _generation(found.engine.versions.get("speculators"))
    return f"generation {generation}, {found.platform.device}"


def _generation(speculators: str | None) -> int:
    """Up to 0.4, speculators generated hidden states itself; since 0.5 vLLM does."""
    try:
        return 1 if speculators and Version(speculators) < Version("0.5") else 2
    except InvalidVersion:
        return 2


def summary(
    terminal: pytest.TerminalReporter,
    reports: Sequence[EngineReport],
    promises: Sequence[str],
    refusal: str,
) -> None:
    """Write the plugin's section, where there is anything to say."""
    bad = [*promises, *filter(None, [refusal])]
    good = [line for report in reports for line in _engine_lines(report)]
    if not bad and not good:
        return
    terminal.section("hidden-state harness")
    for line in good:
        terminal.write_line(line)
    for line in bad:
        terminal.write_line(f"FAILED: {line}", red=True, bold=True)


def _engine_lines(report: EngineReport) -> Iterable[str]:
    plural = "" if report.loads == 1 else "s"
    line = report.attached or f"{report.loads} load{plural}"
    line = f"engine: {line} in {report.seconds:.1f} s"
    yield line + (f", canary {report.canary}" if report.canary else "")
    if report.rehearsal:
        yield f"engine: {report.rehearsal}"
    if report.extraction is not None:
        done = report.extraction
        yield (
            f"extraction: {done['samples']} samples, {done['tokens']} tokens, "
            f"{done['tokens_per_s']:,.0f} tokens/s, in {done['out']}"
        )
    for warning in report.warnings:
        yield f"engine warning: {warning}"
    if report.failure:
        yield f"engine failure: {report.failure}"
        yield f"engine log: {report.log or 'none; it was not started'}"
