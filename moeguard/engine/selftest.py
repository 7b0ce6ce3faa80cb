"""The guard measured on itself: every mutant must be caught with the expected kind, no healthy backend may be blamed."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from moeguard.core.case import Case
from moeguard.core.events import Event, Executed, Found, ScenarioFinished
from moeguard.core.finding import Finding
from moeguard.core.recipe import RECIPES
from moeguard.engine.pool import Pool, last_launch
from moeguard.engine.worker import Job, Settings
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import profile
from moeguard.mutants.base import Broken
from moeguard.mutants.catalogue import CORPUS, HEALTHY, MUTANTS, corpus

#: Healthy executions by profile; smoke and ci run the corpus, the others go on with drawn cases.
HEALTHY_EXECUTIONS = {"smoke": 200, "ci": 200, "nightly": 20_000, "soak": 100_000}
#: Built-in backends that run everywhere and count as healthy.
HEALTHY_BUILTINS = ("torch_reference", "emulated_cutedsl", "emulated_cutedsl_batched")
#: Seconds for one backend call; the mutant that hangs costs this much.
TIMEOUT = 2.0


@dataclass
class Result:
    """mutants, caught: counts. survivors: name, expected and seen kinds. by_kind: caught mutants by kind."""

    mutants: int = 0
    caught: int = 0
    survivors: list[dict[str, Any]] = field(default_factory=list)
    healthy_executions: int = 0
    false_alarms: int = 0
    alarms: list[dict[str, Any]] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 when all were caught without a false alarm, 1 otherwise, 3 when nothing was run."""
        if not self.mutants or not self.healthy_executions:
            return 3
        return 0 if self.caught == self.mutants and not self.false_alarms else 1

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"mutants": self.mutants, "caught": self.caught, "survivors": self.survivors,
                "healthy_executions": self.healthy_executions, "false_alarms": self.false_alarms, "alarms": self.alarms,
                "by_kind": dict(sorted(self.by_kind.items())), "seconds": round(self.seconds, 3)}


def selftest(*, profile_name: str = "smoke", device: str = "cpu", seed: int = 0, workers: int = 1,
             progress: Callable[[str, int, int], None] = lambda stage, done, total: None) -> Result:
    """Run the selftest. profile_name: sets the number of healthy executions. progress: told (stage, done, total)."""
    result, start = Result(), time.monotonic()
    with Pool(Settings(device, mutants=True), workers, TIMEOUT) as pool:
        for number, kind in enumerate(MUTANTS):
            progress("mutants", number, len(MUTANTS))
            _mutant(pool, kind, result)
        _healthy(pool, result, profile_name, device, seed, progress)
    result.seconds = time.monotonic() - start
    return result


def _mutant(pool: Pool, kind: type[Broken], result: Result) -> None:
    """Run the mutant's corpus until an expected kind is seen."""
    result.mutants += 1
    seen: Counter[str] = Counter()
    for case in corpus(kind):
        for event in pool.run_one(Job(0, kind.name, case)):
            if isinstance(event, Found):
                seen[Finding.model_validate(event.finding).kind] += 1
        hit = sorted(kind.expected & set(seen))
        if hit:
            result.caught += 1
            result.by_kind[hit[0]] += 1
            return
    result.survivors.append({"mutant": kind.name, "expected": sorted(kind.expected), "seen": dict(seen)})


def _healthy(pool: Pool, result: Result, profile_name: str, device: str, seed: int,
             progress: Callable[[str, int, int], None]) -> None:
    target = HEALTHY_EXECUTIONS[profile_name]
    under_way: defaultdict[int, list[Event]] = defaultdict(list)  # by identity of the job: they all have number 0
    for job, event in pool.run(_healthy_jobs(result, target, device, seed)):
        under_way[id(job)].append(event)
        if isinstance(event, ScenarioFinished):
            _count(last_launch(under_way.pop(id(job))), job, result)
            progress("healthy", min(result.healthy_executions, target), target)


def _count(events: list[Event], job: Job, result: Result) -> None:
    for event in events:
        if isinstance(event, Executed):
            result.healthy_executions += event.count
        elif isinstance(event, Found):
            finding = Finding.model_validate(event.finding)
            result.false_alarms += 1
            result.alarms.append({"backend": job.backend, "kind": finding.kind, "sentence": finding.sentence,
                                  "case": finding.case.model_dump(mode="json", by_alias=True)})


def _healthy_jobs(result: Result, target: int, device: str, seed: int) -> Iterator[Job]:
    """Every healthy backend on the corpus, then on drawn cases until the target is reached."""
    names = [kind.name for kind in HEALTHY] + list(HEALTHY_BUILTINS)
    for case in CORPUS:
        for name in names:
            yield Job(0, name, case)
    number = 0
    while result.healthy_executions < target:
        for case in draw_round(profile("smoke", device), tuple(RECIPES), seed, number):
            for name in _some(names, case):
                if result.healthy_executions >= target:
                    return
                yield Job(0, name, case)
        number += 1


def _some(names: list[str], case: Case) -> list[str]:
    """A rotating third of the backends, so that a case's oracle serves several of them."""
    start = case.seed % len(names)
    return [names[(start + step) % len(names)] for step in range(max(1, len(names) // 3))]
