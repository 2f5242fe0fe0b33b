"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.gate.report._view import Section, Series, Table, View

_FOLD = 8
"""A table of more rows is folded: a review is read from its first screen."""
# In this order: what stands for a mark holds marks itself. A backslash before a pipe would free it.
_SAFE = (
    ("&", "&amp;"),
    ("\\", "&#92;"),
    ("<", "&lt;"),
    ("`", "'"),
    ("*", "\\*"),
    ("_", "\\_"),
    ("[", "\\["),
    ("~~", "&#126;&#126;"),
    ("://", ":&#47;&#47;"),
)
_STARTS = "#>-+=:|"
"""What begins something else than a paragraph."""


def write(view: View) -> str:
    """Return the report as Markdown."""
    mark = "✅" if view.green else "❌" if view.verdict == "regressed" else "⚠️"
    parts = [f"## {mark} {_line(view.title)}: {view.verdict}\n\n{_line(view.summary)}\n"]
    parts += ["\n".join(_section(one)) for one in view.sections]
    return "\n".join(parts).rstrip() + "\n"


def _section(section: Section) -> Iterator[str]:
    yield f"### {_line(section.title)}\n"
    for text in section.words:
        yield f"{_paragraph(text)}\n"
    if section.table is not None:
        rows = len(section.table.rows)
        if rows > _FOLD:
            yield f"<details><summary>{rows} rows</summary>\n"
        yield _table(section.table)
        if rows > _FOLD:
            yield "</details>\n"
    if section.series:
        yield _table(_by_depth(section.series))


def _paragraph(text: str) -> str:
    flat = _line(text)
    return f"&#{ord(flat[0])};{flat[1:]}" if flat[:1] and flat[0] in _STARTS else flat


def _by_depth(series: Sequence[Series]) -> Table:
    depths = sorted({depth for one in series for depth in one.points})
    rows = tuple(
        (
            one.name,
            *(f"{one.points[depth]:.1e}" if depth in one.points else "-" for depth in depths),
        )
        for one in series
    )
    return Table(("depth", *map(str, depths)), rows)


def _table(table: Table) -> str:
    lines = [table.head, ("---",) * len(table.head), *table.rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    """One line, with nothing in it that Markdown or HTML would take for its own."""
    flat = " ".join(text.split())
    for mark, safe in _SAFE:
        flat = flat.replace(mark, safe)
    return flat
