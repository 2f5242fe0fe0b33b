"""The plot of errors by depth, drawn as SVG by hand: a few hundred bytes, no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from harness.gate.report._view import Series

LIMIT = 1e-5
"""What the engine suite allows."""

_WIDE, _HIGH = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 16, 16, 40
_COLOURS = ("#1f5fa8", "#c05a00", "#2a7f3f", "#7a3ea1", "#8c1d40", "#4a4a4a")
_FLOOR = 1e-9


def error_plot(series: Sequence[Series]) -> str:
    """Return an ``<svg>`` of the errors on a logarithmic scale; empty without any point."""
    points = [(d, e) for one in series for d, e in one.points.items()]
    if not points:
        return ""
    depths = sorted({depth for depth, _ in points})
    lows = [max(error, _FLOOR) for _, error in points if math.isfinite(error)] or [LIMIT]
    low = math.floor(math.log10(min(*lows, LIMIT)))
    high = math.ceil(math.log10(max(*lows, LIMIT) * 1.01))
    frame = _Frame(depths[0], depths[-1], low, max(high, low + 1))
    parts = [*_axes(frame, depths), *_limit(frame)]
    for number, one in enumerate(series):
        parts += _line(frame, one, _COLOURS[number % len(_COLOURS)])
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" width="{_WIDE}" role="img" '
        f'aria-label="largest relative error by depth">{"".join(parts)}</svg>'
    )


class _Frame:
    """Places in the picture."""

    def __init__(self, first: int, last: int, low: int, high: int) -> None:
        self.first, self.last, self.low, self.high = first, last, low, high

    def x(self, depth: int) -> float:
        span = max(self.last - self.first, 1)
        inner = _WIDE - _LEFT - _RIGHT
        return round(_LEFT + inner * (depth - self.first) / span, 1)

    def y(self, error: float) -> float:
        size = math.log10(max(error, _FLOOR)) if math.isfinite(error) else float(self.high)
        share = (min(max(size, self.low), self.high) - self.low) / (self.high - self.low)
        return round(_HIGH - _BOTTOM - (_HIGH - _TOP - _BOTTOM) * share, 1)


def _axes(frame: _Frame, depths: Sequence[int]) -> list[str]:
    parts = []
    for power in range(frame.low, frame.high + 1):
        y = frame.y(10.0**power)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end" font-size="11">1e{power}</text>'
        )
    every = max(1, len(depths) // 16)
    for depth in depths[::every]:
        parts.append(
            f'<text x="{frame.x(depth)}" y="{_HIGH - _BOTTOM + 16}" text-anchor="middle" '
            f'font-size="11">{depth}</text>'
        )
    parts.append(
        f'<text x="{(_LEFT + _WIDE) / 2}" y="{_HIGH - 6}" text-anchor="middle" '
        'font-size="12">depth</text>'
    )
    return parts


def _limit(frame: _Frame) -> list[str]:
    y = frame.y(LIMIT)
    return [
        f'<line x1="{_LEFT}" x2="{_WIDE - _RIGHT}" y1="{y}" y2="{y}" stroke="#b00" '
        'stroke-dasharray="5 4"/>'
        f'<text x="{_WIDE - _RIGHT}" y="{y - 4}" text-anchor="end" font-size="11" '
        f'fill="#b00">limit {LIMIT:.0e}</text>'
    ]


def _line(frame: _Frame, one: Series, colour: str) -> list[str]:
    places = [(frame.x(depth), frame.y(error)) for depth, error in sorted(one.points.items())]
    path = " ".join(f"{x},{y}" for x, y in places)
    dots = "".join(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places)
    name = f"<title>{escape(one.name, quote=False)}</title>"
    return [f'<g><polyline points="{path}" fill="none" stroke="{colour}"/>{dots}{name}</g>']


def colours(series: Sequence[Series]) -> list[tuple[str, str]]:
    """Return each series' colour and name, for a legend."""
    return [(_COLOURS[place % len(_COLOURS)], one.name) for place, one in enumerate(series)]
