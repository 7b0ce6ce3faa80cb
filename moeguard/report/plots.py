"""Plots of a run as inline SVG: how far executions stayed from the limits, and which token counts were covered.

Colours are of the Okabe-Ito palette; what is beyond a limit is also said in words. The same frame gives the same text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeguard.core.tokens import token_bucket
from moeguard.report.coverage import buckets_between
from moeguard.report.flatness import MIB, Flatness, costs
from moeguard.report.text import line

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped,unused-ignore]
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WITHIN, BEYOND = "#0072B2", "#D55E00"
INK, MUTED, RULE = "#1b1f24", "#5b6470", "#c9ced6"
_BINS_A_DECADE = 12
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Metric:
    """One judged quantity: title, its nominal limit, decades shown (log10), and its series in an executions frame."""

    title: str
    limit: float
    decades: tuple[int, int]
    of: Callable[[pd.DataFrame], pd.Series]


METRICS = (
    Metric("worst element: max |z| / \u03c4", 1.0, (-2, 1), lambda frame: frame["max_z"] / frame["tau"]),
    Metric("whole tensor: rms(z)", 1.5, (-2, 1), lambda frame: frame["rms_z"]),
    Metric("error against twins: \u03c1", 2.0, (-1, 1), lambda frame: frame["rho"]),
)


def errors(frame: pd.DataFrame) -> str:
    """SVG text: for each recipe (rows) the distribution of each metric (columns); empty if nothing was judged.

    Both axes are logarithmic. Values outside the shown range, infinite ones too, are counted in the outermost bins.
    """
    values = {metric.title: metric.of(frame) for metric in METRICS}
    judged = frame[["max_z", "rms_z", "rho"]].notna().any(axis=1)
    recipes = sorted(frame["recipe"][judged].unique())
    if not recipes:
        return ""
    with _style("errors"):
        figure = _figure(1.15 * len(recipes) + 0.9)
        grid = figure.subplots(len(recipes), len(METRICS), sharex="col", squeeze=False)
        for column, metric in enumerate(METRICS):
            edges = _edges(values[metric.title], metric)
            for row, recipe in enumerate(recipes):
                axes = grid[row][column]
                _histogram(axes, values[metric.title][frame["recipe"] == recipe].dropna(), edges, metric)
                if column == 0:
                    axes.set_ylabel(line(recipe), rotation=0, ha="right", va="center", color=INK, weight="bold",
                                    labelpad=8, parse_math=False)
            grid[0][column].set_title(metric.title, loc="left", color=INK, fontsize=10, pad=19)
            grid[-1][column].set_xlabel(f"limit {metric.limit:g} (dashed)", color=MUTED)
        return _svg(figure, "errors", "Distribution of the error of each recipe against its limits")


def tokens(frame: pd.DataFrame) -> str:
    """SVG text: executions by power of two of the token count, those with a finding apart; empty if there are none."""
    if frame.empty:
        return ""
    buckets = frame["num_tokens"].map(token_bucket)
    failed = frame["outcome"] == "finding"
    names = buckets_between(int(buckets.min()), int(buckets.max()))
    total = [int((buckets == name).sum()) for name in names]
    wrong = [int(((buckets == name) & failed).sum()) for name in names]
    right = [a - w for a, w in zip(total, wrong, strict=True)]
    with _style("tokens"):
        figure = _figure(2.7)
        axes = figure.subplots()
        places = range(len(names))
        axes.bar(places, right, color=WITHIN, width=0.72)
        axes.bar(places, wrong, bottom=right, color=BEYOND, width=0.72)
        for place, (a, w) in enumerate(zip(total, wrong, strict=True)):
            axes.annotate(f"{a:,}" + (f"\n{w:,} failed" if w else ""), (place, a), (0, 3), ha="center",
                          textcoords="offset points", color=BEYOND if w else MUTED, fontsize=8, linespacing=1.3)
        axes.set_xticks(list(places), [_bucket(name) for name in names])
        axes.set_xlim(-0.6, max(len(names), 8) - 0.4)
        axes.set_ylim(0, max(total) * 1.28)
        axes.set_xlabel("tokens in the batch", color=MUTED)
        axes.set_ylabel("executions", color=MUTED)
        return _svg(figure, "tokens", "Executions by number of tokens")


def usage(flatness: Flatness) -> str:
    """SVG text: memory, and cost per execution, of each worker over its life; empty if none lived long enough."""
    if not flatness.workers:
        return ""
    with _style("usage"):
        figure = _figure(2.6)
        memory, cost = figure.subplots(1, 2)
        for worker in flatness.workers:
            minutes = [point.seconds / 60 for point in worker.points]
            memory.plot(minutes, [(point.resident or 0) / MIB for point in worker.points], color=WITHIN, linewidth=1)
            if any(point.gpu_reserved for point in worker.points):
                memory.plot(minutes, [(point.gpu_reserved or 0) / MIB for point in worker.points], color=BEYOND, linewidth=1)
            spent = costs(worker.points)
            cost.plot([seconds / 60 for seconds, _ in spent], [each for _, each in spent], color=WITHIN, linewidth=1)
        memory.set_title("memory, MiB (orange: reserved on the GPU)", loc="left", color=INK, fontsize=10)
        cost.set_title("cost per execution, ms", loc="left", color=INK, fontsize=10)
        for axes in (memory, cost):
            axes.set_ylim(bottom=0)
            axes.set_xlabel("minutes of the worker", color=MUTED)
        return _svg(figure, "usage", "Memory and cost per execution of the workers over time")


def _figure(height: float) -> Figure:
    """An empty figure, page wide and ``height`` inches high, that belongs to no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(12.4, height), layout="constrained")


def _edges(series: pd.Series, metric: Metric) -> list[float]:
    """Bin edges: the metric's decades, widened to hold the data (up to six decades above 1)."""
    import numpy

    low, high = metric.decades
    finite = series[(series > 0) & numpy.isfinite(series)]
    if len(finite):
        high = min(6, max(high, int(numpy.ceil(numpy.log10(finite.max())))))
    return [float(edge) for edge in numpy.logspace(low, high, (high - low) * _BINS_A_DECADE + 1)]


def _histogram(axes: Axes, series: pd.Series, edges: list[float], metric: Metric) -> None:
    import numpy

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(edges[0], edges[-1])
    shown = series.clip(edges[0], edges[-1])
    over = series > metric.limit
    within, _ = numpy.histogram(shown[~over], edges)
    beyond, _ = numpy.histogram(shown[over], edges)
    widths = numpy.diff(edges)
    if len(series):
        axes.bar(edges[:-1], within, widths, align="edge", color=WITHIN, linewidth=0)
        axes.bar(edges[:-1], beyond, widths, bottom=within, align="edge", color=BEYOND, linewidth=0)
    axes.set_ylim(0.7, max(10.0, float((within + beyond).max(initial=1)) * 2))
    axes.axvline(metric.limit, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    count = int(over.sum())
    axes.text(1, 1.02, f"{len(series):,} judged, {count:,} above" if len(series) else "not judged",
              transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color=BEYOND if count else MUTED,
              fontweight="bold" if count else "normal")
    axes.tick_params(which="minor", length=0)


def _bucket(name: int) -> str:
    return str(name) if name < 2 else f"{name}\u2013{2 * name - 1}"


@contextmanager
def _style(name: str) -> Iterator[None]:
    """Matplotlib with the page's look and reproducible identifiers, for the length of a ``with``."""
    import matplotlib

    with matplotlib.rc_context({
        "svg.hashsalt": f"moeguard {name}", "svg.fonttype": "none", "font.size": 9, "axes.titleweight": "bold",
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": RULE, "axes.facecolor": "none",
        "xtick.color": RULE, "ytick.color": RULE, "xtick.labelcolor": MUTED, "ytick.labelcolor": MUTED,
        "xtick.labelsize": 8, "ytick.labelsize": 8, "figure.facecolor": "none",
    }):
        yield


def _svg(figure: Figure, name: str, label: str) -> str:
    """The figure as an ``<svg>`` element that can stand in HTML; ``name`` makes its identifiers unique on the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = _METADATA.sub("", text[text.index("<svg"):])
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
