"""The map of a finding: where in the output (tokens x hidden) it lies, with the borders of the 64x64 tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: Width and height of the drawing in pixels, without its labels; edge of a tile in elements.
WIDTH, HEIGHT, TILE = 320, 160, 64


def svg(place: Mapping[str, Any] | None) -> str:
    """Inline SVG of a map as ``moeguard.checks.place`` makes it; empty text when there is none or it is malformed.

    Grey is within the limit, orange to red above it (logarithmic up to 100 times); for unwritten elements any is red.
    """
    if not isinstance(place, Mapping):
        return ""
    try:
        tokens, hidden, rows, columns = (int(place[name]) for name in ("tokens", "hidden", "rows", "columns"))
        values = [[float(cell) for cell in line] for line in place["values"]]
    except (KeyError, TypeError, ValueError):
        return ""
    if not tokens or not hidden:
        return ""
    across, down = WIDTH / hidden, HEIGHT / tokens
    cells = []
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            width = min(columns, hidden - column * columns) * across
            height = min(rows, tokens - row * rows) * down
            where = f"rows {row * rows} to {min(tokens, (row + 1) * rows) - 1}, columns {column * columns} to " \
                    f"{min(hidden, (column + 1) * columns) - 1}: {value:.3g}"
            cells.append(f'<rect x="{column * columns * across:.2f}" y="{row * rows * down:.2f}" width="{width:.2f}" '
                         f'height="{height:.2f}" fill="{_colour(value, place.get("meaning") == "unwritten")}">'
                         f"<title>{where}</title></rect>")
    borders = [f'<line x1="{at * across:.2f}" y1="0" x2="{at * across:.2f}" y2="{HEIGHT}"/>' for at in range(TILE, hidden, TILE)]
    borders += [f'<line x1="0" y1="{at * down:.2f}" x2="{WIDTH}" y2="{at * down:.2f}"/>' for at in range(TILE, tokens, TILE)]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 62}" height="{HEIGHT + 34}" role="img" '
            f'font-size="11" font-family="sans-serif"><g transform="translate(56,4)">{"".join(cells)}'
            f'<g stroke="#444" stroke-width="0.6" stroke-dasharray="2 2">{"".join(borders)}</g>'
            f'<rect x="0" y="0" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/></g>'
            f'<text x="50" y="14" text-anchor="end">0</text><text x="50" y="{HEIGHT + 4}" text-anchor="end">T {tokens}</text>'
            f'<text x="56" y="{HEIGHT + 18}">0</text>'
            f'<text x="{WIDTH + 56}" y="{HEIGHT + 18}" text-anchor="end">H {hidden}</text></svg>')


def _colour(value: float, unwritten: bool) -> str:
    if value <= 0:
        return "#f4f4f4"
    if unwritten:
        return "#b3261e"
    if value <= 1:
        shade = 236 - int(60 * value)
        return f"#{shade:02x}{shade:02x}{shade:02x}"
    strength = min(1.0, math.log10(value) / 2)
    return f"#{int(230 - 51 * strength):02x}{int(159 - 121 * strength):02x}{int(60 - 30 * strength):02x}"
