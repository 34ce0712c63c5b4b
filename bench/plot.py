"""Plot of the ratios: one bar for each number, on a logarithmic axis with Apache Kafka in the middle."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

LABEL_WIDTH, PLOT_WIDTH, VALUE_WIDTH = 330, 460, 110
ROW, TOP, BOTTOM = 22, 74, 40
BETTER, WORSE, TIE = "#2f7d5b", "#b3502e", "#8a8f98"
INK, FAINT = "#22262b", "#d4d8dd"
STYLE = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif"


@dataclass(frozen=True, slots=True)
class Bar:
    """`gain` above 1: Ottla is better by that factor, for metrics of either direction."""

    label: str
    gain: float
    target: float | None
    tie: bool


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, fill: str = INK) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} font-size="{size}" fill="{fill}">{escape(text)}</text>'


def _line(x: float, top: float, bottom: float, colour: str) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{colour}"/>'


def _decades(bars: list[Bar]) -> int:
    """Powers of ten on each side of the axis."""
    extent = max((abs(math.log10(bar.gain)) for bar in bars), default=1.0)
    return max(1, math.ceil(extent))


def _axis(decades: int, bottom: float, at: Callable[[float], float]) -> list[str]:
    steps = (1, 2, 5) if decades <= 2 else (1,)
    parts = []
    for gain in (step * 10.0**power for power in range(-decades, decades + 1) for step in steps):
        if abs(math.log10(gain)) <= decades:
            parts.append(_line(at(gain), TOP - 6, bottom, INK if gain == 1 else FAINT))
            label = f"{gain:g}×" if gain >= 1 else f"1/{1 / gain:g}"
            parts.append(_text(at(gain), bottom + 16, label, anchor="middle", size=10))
    return parts


def _row(bar: Bar, top: float, at: Callable[[float], float]) -> list[str]:
    left, right = sorted((at(1.0), at(bar.gain)))
    colour = TIE if bar.tie else BETTER if bar.gain >= 1 else WORSE
    size = f'width="{max(right - left, 1):.1f}" height="{ROW - 8}"'
    said = f"{bar.gain:.2g}×" if bar.gain >= 1 else f"1/{1 / bar.gain:.2g}"
    parts = [
        _text(LABEL_WIDTH - 12, top + 14, bar.label, anchor="end"),
        f'<rect x="{left:.1f}" y="{top + 4:.1f}" {size} fill="{colour}" rx="2"/>',
        _text(LABEL_WIDTH + PLOT_WIDTH + 14, top + 14, f"{said}, tie" if bar.tie else said, fill=colour),
    ]
    if bar.target is not None:
        x, y = at(bar.target), top + ROW / 2
        parts.append(f'<path d="M{x:.1f} {y - 5:.1f}l5 5-5 5-5-5z" fill="{INK}"/>')
    return parts


def draw(title: str, bars: list[Bar]) -> str:
    """An SVG without scripts or fonts."""
    decades = _decades(bars)
    width, bottom = LABEL_WIDTH + PLOT_WIDTH + VALUE_WIDTH, TOP + ROW * len(bars)
    height = bottom + BOTTOM
    size = f"{width} {height}"

    def at(gain: float) -> float:
        return LABEL_WIDTH + PLOT_WIDTH / 2 * (1 + math.log10(gain) / decades)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" style="{STYLE}" role="img">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(16, 28, title, size=16),
        _text(16, 48, "Times better than Apache Kafka (right) or worse (left). Diamond: the target."),
        *_axis(decades, bottom, at),
    ]
    for number, bar in enumerate(bars):
        parts.extend(_row(bar, TOP + ROW * number, at))
    return "\n".join([*parts, "</svg>", ""])
