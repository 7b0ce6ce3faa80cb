"""Whether cost and memory of the workers stay flat: the second half of a process's life against the first, after warm-up.

Medians and the Theil-Sen slope (the median of the slopes between all pairs of points) take no notice of single outliers. The
cost of an interval, and what is held of a GPU at its end, follow the cases that it happened to hold, so there a half must also
rank above the other by more than chance (Mann and Whitney, Annals of Mathematical Statistics 18, 1947).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median
from typing import Any

from moeguard.core.events import Event, Usage
from moeguard.report.text import count, duration

#: Share of a process's measurements that is its warm-up.
WARM_UP = 0.2
#: Measurements after the warm-up below which nothing is concluded.
FEWEST = 16
#: Most that the second half may have of what the first had: memory, and time per execution, which follows the cases.
MOST_MEMORY, MOST_COST = 1.05, 1.25
#: Standard deviations by which the ranks of the second half must exceed chance, before a cost has grown.
SURE = 3.0
#: Points of which the slope is taken, evenly spread over all.
SLOPE_POINTS = 200
MIB = float(1 << 20)


@dataclass(frozen=True, slots=True)
class Trend:
    """One quantity of one worker. first, second: medians of the halves. slope: change an hour. limit: on second / first.

    beyond_chance: the second half ranks above the first; of a process's memory, whose values follow one another, this is not
    asked.
    """

    what: str
    unit: str
    first: float
    second: float
    slope: float
    limit: float
    beyond_chance: bool = True

    @property
    def flat(self) -> bool:
        """Whether the second half is within the limit, or beyond it by chance."""
        return self.second <= self.limit * self.first or not self.beyond_chance

    @property
    def weight(self) -> tuple[bool, float]:
        """Order of trends of one quantity: what grows is above what is flat, then by the change."""
        return not self.flat, self.second / self.first if self.first else 0.0

    def to_data(self) -> dict[str, Any]:
        """JSON data, numbers to four digits."""
        rounded = {name: float(f"{getattr(self, name):.4g}") for name in ("first", "second", "slope", "limit")}
        return {"what": self.what, "unit": self.unit, **rounded, "beyond_chance": self.beyond_chance, "flat": self.flat}


@dataclass(frozen=True, slots=True)
class Worker:
    """One process that lived long enough. points: all its measurements. trends: of those after the warm-up."""

    name: str
    points: tuple[Usage, ...]
    trends: tuple[Trend, ...]


@dataclass(frozen=True, slots=True)
class Flatness:
    """verdict: ``flat``, ``grows``, or ``too short`` when no process lived long enough to tell."""

    workers: tuple[Worker, ...]

    @property
    def verdict(self) -> str:
        """``grows`` when one quantity of one worker does."""
        if not self.workers:
            return "too short"
        return "flat" if all(trend.flat for worker in self.workers for trend in worker.trends) else "grows"

    @property
    def sentence(self) -> str:
        """The verdict with the largest changes, in one sentence."""
        if not self.workers:
            return "No worker lived long enough to tell whether cost and memory stay flat."
        trends: defaultdict[str, list[Trend]] = defaultdict(list)
        for trend in (trend for worker in self.workers for trend in worker.trends):
            trends[trend.what].append(trend)
        worst = [max(group, key=lambda one: one.weight) for group in trends.values()]
        changes = ", ".join(f"{trend.what} {trend.first:,.4g} to {trend.second:,.4g} {trend.unit}"
                            + (", which may be chance" if trend.flat and trend.second > trend.limit * trend.first else "")
                            for trend in worst)
        longest = max(worker.points[-1].seconds for worker in self.workers)
        verb = "stay flat" if self.verdict == "flat" else "grow"
        return (f"Cost and memory {verb} after warm-up: {changes} (medians of the halves; {count(len(self.workers), 'worker')}, "
                f"up to {duration(longest)}).")

    def rows(self) -> list[tuple[str, str, str, str, str, str]]:
        """A table: worker, quantity, medians of both halves, change an hour, whether it is flat."""
        return [(worker.name, f"{trend.what} ({trend.unit})", f"{trend.first:,.4g}", f"{trend.second:,.4g}",
                 f"{trend.slope:+,.4g}", "yes" if trend.flat else f"no (more than {trend.limit:g} times)")
                for worker in self.workers for trend in worker.trends]

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"verdict": self.verdict, "sentence": self.sentence, "workers": [
            {"worker": worker.name, "measurements": len(worker.points), "seconds": worker.points[-1].seconds,
             "executions": worker.points[-1].executions, "bank": worker.points[-1].bank,
             "trends": [trend.to_data() for trend in worker.trends]} for worker in self.workers]}


HEADER = ("worker", "quantity", "first half", "second half", "change an hour", "flat")


def judge(events: Iterable[Event]) -> Flatness:
    """Flatness of a run from its events, by worker process."""
    series: defaultdict[str, list[Usage]] = defaultdict(list)
    for event in events:
        if isinstance(event, Usage):
            series[event.worker].append(event)
    workers = []
    for name, points in series.items():
        steady = points[int(len(points) * WARM_UP):]
        if len(steady) >= FEWEST:
            workers.append(Worker(name, tuple(points), tuple(_trends(steady))))
    return Flatness(tuple(workers))


def _trends(points: Sequence[Usage]) -> Iterable[Trend]:
    sizes: tuple[tuple[str, Callable[[Usage], int | None], bool], ...] = (
        ("memory", lambda one: one.resident, False), ("GPU memory reserved", lambda one: one.gpu_reserved, True))
    for what, of, independent in sizes:
        known = [(one.seconds, value / MIB) for one in points if (value := of(one)) is not None]
        if len(known) == len(points):
            yield _trend(what, "MiB", known, MOST_MEMORY, independent=independent)
    spent = costs(points)
    if len(spent) >= 2:
        what = f"{'CPU time' if points[0].gpu_reserved is None else 'time'} per execution"
        yield _trend(what, "ms", spent, MOST_COST, independent=True)


def costs(points: Sequence[Usage]) -> list[tuple[float, float]]:
    """(seconds, milliseconds per execution) between measurements: CPU time, since others may share the CPU, or with a GPU time.
    """
    spent = [(after.seconds, 1e3 * (after.cpu_seconds - before.cpu_seconds if after.gpu_reserved is None
                                    else after.seconds - before.seconds), after.executions - before.executions)
             for before, after in pairwise(points)]
    return [(seconds, milliseconds / executions) for seconds, milliseconds, executions in spent if executions]


def _trend(what: str, unit: str, values: Sequence[tuple[float, float]], limit: float, *, independent: bool = False) -> Trend:
    """independent: each value follows from the cases about its time alone, so that chance can be told by ranks."""
    middle = len(values) // 2
    first, second = ([value for _, value in half] for half in (values[:middle], values[middle:]))
    step = -(-len(values) // SLOPE_POINTS)
    slopes = [(later[1] - earlier[1]) / (later[0] - earlier[0])
              for earlier, later in combinations(values[::step], 2) if later[0] > earlier[0]]
    return Trend(what, unit, median(first), median(second), 3600 * median(slopes) if slopes else 0.0, limit,
                 not independent or _ranks_above(first, second))


def _ranks_above(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether values of ``second`` exceed those of ``first`` more often than chance: the U of Mann and Whitney, as a normal."""
    ordered = sorted(first)
    wins = sum(bisect_left(ordered, value) + bisect_right(ordered, value) for value in second) / 2
    pairs = len(first) * len(second)
    return wins - pairs / 2 > SURE * math.sqrt(pairs * (len(first) + len(second) + 1) / 12)
