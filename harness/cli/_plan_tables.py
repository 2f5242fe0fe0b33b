"""The tables of ``harness plan``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.estimate import Estimate, Term, Verdict, gib

_STYLE = {"ok": "green", "note": "yellow", "fail": "bold red"}


def show(
    made: Estimate, verdicts: Sequence[Verdict], shallower: Sequence[int | None], tokens: int
) -> None:
    """Print an estimate and what it means for each card."""
    console = Console()
    sources: list[str] = []
    console.print(_checks(made))
    device = [*made.inside, *_cache(made), *made.outside]
    console.print(_terms("on each device", device, sources))
    console.print(_terms("on the host", [*made.host, made.page_cache], sources))
    console.print(_cards(verdicts))
    for number, source in enumerate(sources, start=1):
        line = f"[{number}] {source}"
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
    for line in _lines(made, tokens):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for verdict, layers in zip(verdicts, shallower, strict=True):
        style = "green" if verdict.fits else "bold red"
        console.print(_sentence(verdict, layers), style=style, markup=False, soft_wrap=True)


def _checks(made: Estimate) -> Table:
    engine = made.engine
    table = Table(
        title=f"{made.model.name}, {made.model.shape.num_hidden_layers} layers, "
        f"tensor parallel size {engine.tensor_parallel_size}"
    )
    for name in ("sharding", "state", "found"):
        table.add_column(name, overflow="fold")
    for check in made.checks:
        table.add_row(check.id, f"[{_STYLE[check.state]}]{check.state}[/]", escape(check.found))
    return table


def _terms(title: str, terms: Iterable[Term], sources: list[str]) -> Table:
    """Return a table of terms; sources are numbered, since several terms share one."""
    table = Table(title=title)
    for name in ("what", "size", "known by", "source"):
        table.add_column(name, justify="right" if name == "size" else "left", overflow="fold")
    for term in terms:
        if term.source not in sources:
            sources.append(term.source)
        number = sources.index(term.source) + 1
        table.add_row(term.name, gib(term.bytes), term.confidence, f"\\[{number}]")
    return table


def _cache(made: Estimate) -> list[Term]:
    token = f"{made.pages.token:,} B a token, {made.pages.hidden_token:,} of it captured rows"
    name = f"cache for one request of {made.engine.max_model_len:,}"
    source = f"{token}; the same arithmetic gave the capacity measured on an H200"
    return [Term(name, made.least_cache, source, "exact")]


def _cards(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="cards")
    for name in ("card", "memory", "vLLM may take", "left for cache", "tokens", "verdict"):
        table.add_column(name, justify="left" if name in ("card", "verdict") else "right")
    for verdict in verdicts:
        table.add_row(
            verdict.card.title,
            gib(verdict.card.memory),
            gib(verdict.asked),
            gib(verdict.pool),
            f"{verdict.tokens:,}",
            "[green]fits[/]" if verdict.fits else "[bold red]does not fit[/]",
        )
    return table


def _lines(made: Estimate, tokens: int) -> list[str]:
    model = made.model
    lines = [
        f"checkpoint: {model.checkpoint_bytes / 1e9:.2f} GB ({gib(model.checkpoint_bytes)}) of "
        f"tensors; {gib(made.weight_bytes)} on each device",
        f"free on each device, at least: {gib(made.device_bytes)}; while weights are put into "
        f"kernel order, {gib(made.repack)} more than they take",
        f"load: {made.load_seconds:.0f} s at {made.read_rate / 1e9:.2f} GB/s ({made.rate_source})",
        f"samples: {made.row_bytes:,} B a token"
        + (f"; {tokens:,} tokens, {made.disk_bytes / 1e9:.3f} GB" if tokens else ""),
    ]
    if model.at_load:
        lines[2] = f"load: {made.load_seconds:.0f} s; weights are made on the devices"
    return lines


def _sentence(verdict: Verdict, layers: int | None) -> str:
    line = verdict.explain()
    return line if not layers else f"{line}; {layers} layers would fit"
