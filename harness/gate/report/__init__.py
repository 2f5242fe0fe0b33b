"""The gate's answer as one file: HTML that needs nothing beside it, Markdown for a review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import __version__
from harness.errors import UsageError
from harness.gate.evidence import Evidence
from harness.gate.report._markdown import write
from harness.gate.report._plot import colours, error_plot
from harness.gate.report._view import view
from harness.gate.verdict import GateResult, Verdict

__all__ = ["html", "markdown", "save"]

Prompts = Mapping[str, Sequence[int]]
_TEMPLATE = Path(__file__).with_name("report.html.j2")
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
        raise UsageError(
            "report.no-jinja",
            expected="jinja2, which an HTML report is written with",
            found=str(error),
            where="--report",
            next="pip install 'hidden-state-harness[report]', or name a file that ends in .md",
        ) from error
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


def save(
    path: Path,
    result: GateResult,
    evidence: Sequence[Evidence] = (),
    *,
    prompts: Prompts | None = None,
) -> None:
    """Write a report; Markdown where the name ends in ``.md``, else HTML.

    Raises:
        UsageError: ``report.cannot-write`` or ``report.no-jinja``.
    """
    made = markdown if path.suffix == ".md" else html
    text = made(result, evidence, prompts=prompts)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "report.cannot-write",
            expected="a file that can be written",
            found=error.strerror or str(error),
            where=str(path),
            next="choose another --report",
        ) from error
