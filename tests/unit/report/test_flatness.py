"""Whether cost and memory stay flat, and where a reader sees it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from report_events import manifest, scenario

from moeguard.core.events import Event, RunFinished, Usage
from moeguard.report import html, markdown
from moeguard.report.flatness import judge
from moeguard.report.outcome import fold

Series = Callable[[int], float]
MIB = 1 << 20


def points(memory: Series, cost: Series, number: int = 100, worker: str = "w", gpu: Series | None = None) -> list[Usage]:
    """Measurements every ten seconds: memory in MiB, cost in ms an execution."""
    done, seconds, events = 0, 0.0, []
    for place in range(number):
        done += 1000
        seconds += cost(place)
        reserved = None if gpu is None else int(gpu(place) * MIB)
        events.append(Usage(worker=worker, scenarios=done // 10, executions=done, cpu_seconds=seconds,
                            seconds=10.0 * place if gpu is None else seconds, resident=int(memory(place) * MIB),
                            gpu_reserved=reserved, bank={"prepared_hits": 3}))
    return events


def noisy(level: float, share: float = 0.1, seed: int = 0) -> Series:
    draw = random.Random(seed)
    return lambda place: level * (1 + share * draw.uniform(-1, 1)) * (30 if place % 17 == 16 and share else 1)


@pytest.mark.parametrize(("memory", "cost", "verdict", "growing"), [
    (lambda place: 900, noisy(5.0), "flat", []),
    (lambda place: 900 if place > 15 else 300 + 40 * place, lambda place: 5 if place > 15 else 50, "flat", []),  # warm-up
    (lambda place: 900 + 3 * place, noisy(5.0), "grows", ["memory"]),
    (lambda place: 900, lambda place: 5 + 0.06 * place, "grows", ["CPU time per execution"]),
    (noisy(900, 0.0), lambda place: 5 * (1 + 0.3 * (place > 60)), "grows", ["CPU time per execution"]),
])
def test_growth_after_the_warm_up_and_nothing_else_is_growth(memory: Series, cost: Series, verdict: str,
                                                             growing: list[str]) -> None:
    found = judge(points(memory, cost))
    assert found.verdict == verdict
    assert [trend.what for worker in found.workers for trend in worker.trends if not trend.flat] == growing


def test_the_slope_is_a_change_an_hour() -> None:
    trend = judge(points(lambda place: 900 + 2 * place, lambda place: 5)).workers[0].trends[0]
    assert trend.slope == pytest.approx(720)
    assert (trend.first, trend.second) == (979, 1059)


def test_each_worker_counts_and_a_short_one_does_not() -> None:
    flat, leaky = points(lambda place: 900, lambda place: 5), points(lambda place: 900 + 25 * place, lambda place: 5, worker="v")
    assert judge([*flat, *leaky]).verdict == "grows"
    assert judge([*flat, *leaky[:18]]).verdict == "flat"
    assert judge(leaky[:18]).verdict == "too short"
    assert judge(leaky[:19]).verdict == "grows"


def test_on_a_gpu_its_memory_counts_and_the_clock_is_the_cost() -> None:
    found = judge(points(lambda place: 900, lambda place: 5, gpu=lambda place: 4000 + 20 * place))
    assert {trend.what: trend.flat for trend in found.workers[0].trends} == {
        "memory": True, "GPU memory reserved": False, "time per execution": True}


def lognormal(seed: int, growth: float = 1.0) -> Series:
    """Costs of very different cases; ``growth`` times as much from the middle of 400 on."""
    draw = random.Random(seed)
    return lambda place: draw.lognormvariate(1.5, 1.2) * (growth if place > 240 else 1.0)


def test_intervals_with_very_different_cases_are_no_growth_of_the_cost_and_a_real_one_still_is() -> None:
    short = [judge(points(lambda place: 900, lognormal(seed), number=24)) for seed in range(100)]
    beyond = [found for found in short for trend in found.workers[0].trends if trend.second > trend.limit * trend.first]
    assert len(beyond) > 20 and sum(found.verdict == "grows" for found in short) <= 2
    doubtful = next(found for found in short if found.verdict == "flat" and "which may be chance" in found.sentence)
    assert doubtful.sentence.startswith("Cost and memory stay flat after warm-up: memory 900 to 900 MiB, CPU time per execution")
    for seed in range(3):
        assert judge(points(lambda place: 900, lognormal(seed, 2.5), number=400)).verdict == "grows"


def test_a_reader_sees_it_in_the_summary_the_page_and_the_json() -> None:
    events: list[Event] = [*scenario(0), *points(lambda place: 900 + 3 * place, lambda place: 5), RunFinished(seconds=1000.0)]
    outcome = fold(manifest(), events)
    sentence = "Cost and memory grow after warm-up: memory 1,018 to 1,138 MiB, CPU time per execution 5 to 5 ms"
    assert sentence in markdown.render(outcome, "x")
    page = html.render(outcome, events, "x")
    assert sentence in page and 'id="usage-figure_1"' in page and "no (more than 1.05 times)" in page
    data = outcome.to_data("x")["flatness"]
    assert data["verdict"] == "grows" and data["workers"][0]["bank"] == {"prepared_hits": 3}


def test_what_workers_use_is_a_matter_of_times_and_changes_no_file_of_a_short_run() -> None:
    plain: list[Event] = [*scenario(0), RunFinished(seconds=1.0)]
    used = [plain[0], *points(lambda place: 900, lambda place: 5, number=18), *plain[1:]]
    outcomes = [fold(manifest(), events) for events in (plain, used)]
    assert markdown.render(outcomes[0], "x") == markdown.render(outcomes[1], "x")
    assert outcomes[0].to_data("x") == outcomes[1].to_data("x")


def test_gpu_memory_that_follows_the_cases_is_no_growth_and_a_leak_of_a_few_minutes_is() -> None:
    def held(seed: int, leak: float = 0.0) -> Series:
        draw = random.Random(seed)
        return lambda place: 120 + draw.choice((0, 0, 10, 40, 90)) + leak * place

    def grown(seed: int, leak: float = 0.0) -> bool:
        return not judge(points(lambda place: 900, lambda place: 5, number=24, gpu=held(seed, leak))).workers[0].trends[1].flat

    assert sum(grown(seed) for seed in range(100)) <= 2
    assert all(grown(seed, 20.0) for seed in range(20))
