"""Whom the end of a process is to be blamed on: the case at which it ended, or one that ran there before it.

Everything runs in fresh processes. The case alone is tried first. When it does no harm alone, the last cases of its
process are launched again in their order, and that list is cut down to those without which nothing happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from moeguard.core.case import Case
from moeguard.core.events import Event, Found, ScenarioFinished
from moeguard.core.finding import Finding
from moeguard.engine.pool import Workers
from moeguard.engine.worker import Job

#: Fresh processes that cutting down a list may cost, and seconds after which the shortest list so far is taken.
PROCESSES, SECONDS = 16, 60.0
ENDS = ("crash", "hang")

Lookup = Callable[[int], Case | None]


def ended_alone(workers: Workers, finding: Finding) -> bool:
    """Whether the finding's case, as the first of a fresh process, ends it or raises in the same way."""
    job = Job(-1, finding.backend, finding.case)
    return _hit(workers.fresh([job])[-1], finding)


def blame(workers: Workers, finding: Finding, lookup: Lookup) -> list[Finding]:
    """The finding with the cases that it needs before it, then one for a backend or recipe whose case is the guilty one.

    Its case is the one at which the process ends; ``numbers`` names the ``guilty`` case and holds ``predecessors``, in order,
    the guilty one first. Empty when launching the remembered cases again shows nothing. lookup: the case of a scenario.
    """
    jobs = _launched(finding, lookup)
    if len(jobs) < 2:
        return []
    before, last = jobs[:-1], jobs[-1]
    tries, start = 0, time.monotonic()

    def fails(earlier: Sequence[Job]) -> bool:
        nonlocal tries
        tries += 1
        done = workers.fresh([*earlier, last])
        return len(done) == len(earlier) + 1 and _hit(done[-1], finding)

    if fails(before[-1:]):
        needed = before[-1:]
    elif len(before) > 1 and fails(before):
        needed = _fewest(before, lambda earlier: tries < PROCESSES and time.monotonic() - start < SECONDS and fails(earlier))
    else:
        return []
    return _named(finding, needed)


def alone(finding: Finding) -> Finding:
    """The finding of a case that needs no other before it."""
    numbers = {name: value for name, value in finding.numbers.items() if name != "launched"}
    return finding.model_copy(update={"numbers": numbers | {"guilty": finding.case.fingerprint, "predecessors": []}})


def _named(finding: Finding, needed: Sequence[Job]) -> list[Finding]:
    first = needed[0]
    others = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
    whose = "" if first.backend == finding.backend else f" of {first.backend}"
    numbers: dict[str, Any] = {name: value for name, value in finding.numbers.items() if name != "launched"}
    numbers |= {"guilty": first.case.fingerprint, "predecessors": [
        {"backend": job.backend, "case": job.case.model_dump(mode="json", by_alias=True)} for job in needed]}
    named = [finding.model_copy(update={
        "reproduced": True, "numbers": numbers,
        "sentence": f"{finding.sentence}, but only after case {first.case.fingerprint}{whose}{others} in the same process"})]
    if (first.backend, first.case.recipe) != (finding.backend, finding.recipe):
        named.append(Finding(
            kind=finding.kind, check=finding.check, backend=first.backend, case=first.case, reproduced=True,
            sentence=f"after this case {finding.backend} ends the process on case {finding.case.fingerprint}, which alone "
                     f"does no harm ({finding.sentence})",
            numbers={"guilty": first.case.fingerprint, "victim": finding.case.fingerprint}))
    return named


def _fewest(jobs: Sequence[Job], fails: Callable[[Sequence[Job]], bool]) -> list[Job]:
    """A short part of ``jobs``, which fail together, that fails: the latest job that it takes is bisected, then the next."""
    kept: list[Job] = []
    rest = list(jobs)
    while rest and not (kept and fails(kept)):
        low, high = 0, len(rest) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fails([*kept, *rest[middle:]]) else (low, middle - 1)
        kept.append(rest[low])
        rest = rest[low + 1:]
    return kept


def _launched(finding: Finding, lookup: Lookup) -> list[Job]:
    """The remembered jobs of the process, the finding's own at the end; those alone whose case is known, up to a gap."""
    jobs: list[Job] = []
    for entry in finding.numbers.get("launched", ()):
        case = Case.model_validate(entry["case"]) if isinstance(entry["case"], dict) else lookup(entry["scenario"])
        if case is None:
            jobs.clear()
        else:
            jobs.append(Job(-1, entry["backend"], case))
    return jobs


def _hit(events: Sequence[Event], finding: Finding) -> bool:
    """Whether events show the same end: the same kind of finding, or a process that is lost."""
    return any((isinstance(event, Found) and event.finding["kind"] == finding.kind)
               or (isinstance(event, ScenarioFinished) and event.status in ENDS) for event in events)
