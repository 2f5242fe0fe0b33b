"""The gate's answer as one file: HTML that needs nothing beside it, Markdown for a review."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from harness import __version__
from harness.errors import UsageError
from harness.gate.evidence import Evidence
from harness.gate.report._markdown import write
from harness.gate.report._plot import colours, error_plot
from harness.gate.report._view import view
from harness.gate.scale import Verdict
from harness.gate.verdict import GateResult

__all__ = ["html", "markdown", "require_target", "save"]

Prompts = Mapping[str, Sequence[int]]
_TEMPLATE = Path(__file__).with_name("report.html.j2")
_FORMS = (".html", ".htm", ".md", "")
"""Endings of a report's name; without one it is HTML, as into a pipe."""
_OPEN = (Verdict.UNKNOWN, Verdict.NOT_COMPARABLE)


def html(
    result: GateResult, evidence: Sequence[Evidence] = (), *, prompts: Prompts | None = None
) -> str:
    """Return one self-contained page: no script, no font, no picture from elsewhere.

    Args:
        result: The gate's answer.
        evidence: What is recorded; the candidate's own is shown.
        prompts: Prompts to show; by default no prompt and no token id is in the page.

    Raises:
        UsageError: ``report.no-jinja``.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise _no_jinja(str(error)) from error
    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(_TEMPLATE.read_text(encoding="utf-8"))
    verdict = result.verdict
    return page.render(
        view=view(result, evidence, prompts=prompts),
        colour="green" if verdict.green else "open" if verdict in _OPEN else "",
        plot=lambda series: Markup(error_plot(series)),
        legend=colours,
        version=__version__,
    )


def markdown(
    result: GateResult, evidence: Sequence[Evidence] = (), *, prompts: Prompts | None = None
) -> str:
    """Return the same as Markdown for a pull request, long tables folded."""
    return write(view(result, evidence, prompts=prompts))


def require_target(path: Path) -> None:
    """Refuse a report that could not be written, before the work that it is to tell of.

    Raises:
        UsageError: ``report.cannot-write``, ``report.no-such-form`` or ``report.no-jinja``.
    """
    if path.suffix.lower() not in _FORMS:
        raise UsageError(
            "report.no-such-form",
            expected="a name that ends in .html or .md",
            found=path.suffix,
            where=str(path),
            next=f"--report {path.with_suffix('.html')}",
        )
    if path.is_dir():
        raise _cannot_write(path, "a folder")
    try:
        if path.exists():
            with path.open("r+b"):
                pass
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".harness-report-"):
            pass
    except OSError as error:
        raise _cannot_write(path, error.strerror or str(error)) from error
    if path.suffix.lower() != ".md" and importlib.util.find_spec("jinja2") is None:
        raise _no_jinja("No module named 'jinja2'")


def save(
    path: Path,
    result: GateResult,
    evidence: Sequence[Evidence] = (),
    *,
    prompts: Prompts | None = None,
) -> None:
    """Write a report; Markdown where the name ends in ``.md``, else HTML. All of it, or nothing.

    Raises:
        UsageError: ``report.cannot-write`` or ``report.no-jinja``.
    """
    made = markdown if path.suffix.lower() == ".md" else html
    text = made(result, evidence, prompts=prompts)
    # A pipe or a device is written to; what would take its place is none.
    plain = path.is_file() or not path.exists()
    scratch = path.with_name(f".{path.name}.{os.getpid()}") if plain else path
    try:
        scratch.write_text(text, encoding="utf-8")
        if plain:
            scratch.replace(path)
    except OSError as error:
        raise _cannot_write(path, error.strerror or str(error)) from error
    finally:
        if plain:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)


def _cannot_write(path: Path, found: str) -> UsageError:
    return UsageError(
        "report.cannot-write",
        expected="a file that can be written",
        found=found,
        where=str(path),
        next="choose another --report",
    )


def _no_jinja(found: str) -> UsageError:
    return UsageError(
        "report.no-jinja",
        expected="jinja2, which an HTML report is written with",
        found=found,
        where="--report",
        next="pip install 'hidden-state-harness[report]', or name a file that ends in .md",
    )
