"""Plots as SVG, without a library: the same data give the same bytes; colours follow the reader's light or dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 720, 150, 80, 44, 20, 8
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 14px; }
.quiet { fill: #59636e; }
.grid { stroke: #d1d9e0; stroke-width: 1; }
.other { fill: #8c959f; stroke: #8c959f; }
.ours { fill: #0969da; stroke: #0969da; }
.limit { fill: #afb8c1; stroke: #afb8c1; }
.line { fill: none; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .quiet { fill: #9198a1; }
  .grid { stroke: #3d444d; }
  .other { fill: #6e7681; stroke: #6e7681; }
  .ours { fill: #4493f8; stroke: #4493f8; }
  .limit { fill: #484f58; stroke: #484f58; }
}
</style>"""


def number(value: float) -> str:
    """Three significant digits, with thousands separated."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{round(value, digits):,.{min(digits, 3)}f}"


def bars(title: str, unit: str, values: Mapping[str, float], classes: Mapping[str, str]) -> str:
    """Horizontal bars on a logarithmic axis, in the given order."""
    low, high = decades(list(values.values()))
    height = TOP + len(values) * (BAR + GAP) + 28
    body = axis(low, high, height - 28, unit)
    for at, (name, value) in enumerate(values.items()):
        top = TOP + at * (BAR + GAP)
        end = across(value, low, high)
        body += [
            f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{classes.get(name, "other")}" x="{LEFT}" y="{top}" width="{end - LEFT:.1f}" '
            f'height="{BAR}" rx="2"/>',
            f'<text x="{end + 6:.1f}" y="{top + 14}">{number(value)}</text>',
        ]
    return drawing(title, height, body)


def lines(
    title: str, unit: str, xs: Sequence[int], series: Mapping[str, Sequence[float]], classes: Mapping[str, str]
) -> str:
    """Lines over steps, both axes logarithmic; each line is named at its end."""
    values = [value for line in series.values() for value in line]
    low, high = decades(values)
    height, bottom, right = 420, 380, WIDTH - LEFT

    def along(x: int) -> float:
        return 60 + (right - 60) * math.log(x / xs[0]) / math.log(xs[-1] / xs[0])

    def up(value: float) -> float:
        return bottom - (bottom - TOP) * (math.log10(value) - low) / (high - low)

    body = []
    for power in range(low, high + 1):
        y = up(10.0**power)
        body += [
            f'<line class="grid" x1="60" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text class="quiet" x="52" y="{y + 4:.1f}" text-anchor="end">{label(power)}</text>',
        ]
    body += [f'<text class="quiet" x="{along(x):.1f}" y="{bottom + 18}" text-anchor="middle">{x}</text>' for x in xs]
    body.append(f'<text class="quiet" x="60" y="{bottom + 34}">steps of the turn; {escape(unit)}</text>')
    heights = spread({name: up(line[-1]) for name, line in series.items()})
    for name, line in series.items():
        points = " ".join(f"{along(x):.1f},{up(value):.1f}" for x, value in zip(xs, line, strict=True))
        chosen = classes.get(name, "other")
        body += [
            f'<polyline class="{chosen} line" style="fill:none" points="{points}"/>',
            f'<text x="{right + 6}" y="{heights[name] + 4:.1f}">{escape(name)}</text>',
        ]
    return drawing(title, height, body)


def spread(heights: Mapping[str, float], least: float = 14) -> dict[str, float]:
    """Heights of labels, moved apart where they would overlap."""
    placed: dict[str, float] = {}
    last = -math.inf
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        last = placed[name] = max(height, last + least)
    return placed


def axis(low: int, high: int, bottom: int, unit: str) -> list[str]:
    """The powers of ten as vertical lines, with their labels and the unit."""
    drawn = []
    for power in range(low, high + 1):
        x = across(10.0**power, low, high)
        drawn += [
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}"/>',
            f'<text class="quiet" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label(power)}</text>',
        ]
    drawn.append(f'<text class="quiet" x="{LEFT - 8}" y="{bottom + 16}" text-anchor="end">{escape(unit)}</text>')
    return drawn


def decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten below the lowest and above the highest value."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def across(value: float, low: int, high: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(value) - low) / (high - low)


def label(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:.{-power}f}"


def drawing(title: str, height: int, body: Sequence[str]) -> str:
    """The whole picture; its title is also what a screen reader says."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    shown = f'<text class="title" x="8" y="20">{escape(title)}</text>'
    return "\n".join([head, STYLE, shown, *body, "</svg>"]) + "\n"
