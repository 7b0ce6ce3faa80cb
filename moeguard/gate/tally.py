"""What one cell has shown, counted from the events of its scenarios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from moeguard.core.events import Event, Executed, Found, Noted, ScenarioStarted, Swept

#: The name of the tactic that an untuned call gets.
DEFAULT_TACTIC = "default"
#: Tactics that a campaign forces in one scenario (moeguard.checks.tactics): one that forced fewer was offered no more.
FORCED_PER_SCENARIO = 8
_JUDGED = ("ok", "finding", "refused")


class Defect(NamedTuple):
    """What a finding is about. tactic: ``default`` or its name. entry: id of the ledger entry, None when it is open."""

    fingerprint: str
    kind: str
    tactic: str
    entry: str | None


@dataclass(slots=True)
class Tally:
    """Counts of one cell; those of several runs add up with ``add``.

    executions: calls with a verdict. clean, failed, excused: fingerprints of distinct cases that were drawn and had no finding,
    that had an open one, that had known ones alone or were not launched because of a known crash. tactics: judged
    executions by tactic that was seen or offered. right: tactics with a right answer. offers_known: a scenario forced fewer
    tactics than a campaign may, so all. offers_cut: one forced as many as it may, so perhaps not all. swept: a sweep forced
    every one. tokens: T of judged cases.
    gains: time of the default over that of the fastest right tactic, one for each layer and T of a sweep.
    """

    executions: int = 0
    clean: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)
    tactics: Counter[str] = field(default_factory=Counter)
    right: set[str] = field(default_factory=set)
    offers_known: bool = False
    offers_cut: bool = False
    swept: bool = False
    tokens: set[int] = field(default_factory=set)
    defects: set[Defect] = field(default_factory=set)
    gains: list[float] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing was executed and nothing was found."""
        return not self.executions and not self.defects

    def add(self, other: Tally) -> None:
        """Take over what another run has shown for the same cell."""
        self.executions += other.executions
        self.clean |= other.clean
        self.failed |= other.failed
        self.excused |= other.excused
        self.tactics.update(other.tactics)
        self.right |= other.right
        self.offers_known |= other.offers_known
        self.offers_cut |= other.offers_cut
        self.swept |= other.swept
        self.tokens |= other.tokens
        self.defects |= other.defects
        self.gains += other.gains

    def count(self, started: ScenarioStarted, events: Iterable[Event], *, drawn: bool = True) -> None:
        """Count one scenario. Raises ValueError or KeyError on events that no run can have written.

        drawn: the case comes from a profile's distribution, which is what the failure rate is about. One that was given
        (replay, sweep) counts when it fails, for tactics and for tokens, but not as a clean case.
        """
        executed: list[Executed] = []
        found: list[Found] = []
        swept: list[Swept] = []
        for event in events:
            match event:
                case Executed():
                    executed.append(event)
                case Found():
                    found.append(event)
                case Swept():
                    swept.append(event)
                case Noted(what="tactics", reason="the backend offers none"):
                    self.offers_known = True
                case Noted(what="known crash"):  # it was not launched
                    self.excused.add(started.fingerprint)
        defects = {_defect(event.finding) for event in found}
        self.defects |= defects
        self.executions += sum(one.count for one in executed)
        for one in executed:
            self.tactics[one.tactic or DEFAULT_TACTIC] += one.count * (one.outcome in _JUDGED)
            if one.outcome == "ok":
                self.right.add(one.tactic or DEFAULT_TACTIC)
        self._offers(executed, swept)
        for defect in defects:
            self.tactics[defect.tactic] += 0
        wrong = any(one.outcome == "finding" for one in executed)
        if not (defects or any(one.outcome in _JUDGED for one in executed)):
            return
        known = bool(defects) and all(defect.entry is not None for defect in defects)
        if known:
            self.excused.add(started.fingerprint)
        elif defects or wrong:
            self.failed.add(started.fingerprint)
        elif drawn:
            self.clean.add(started.fingerprint)
        self.tokens.add(int(started.case["shape"]["num_tokens"]))

    def _offers(self, executed: list[Executed], swept: list[Swept]) -> None:
        """Take over the tactics that the scenario shows, and whether these are all."""
        forced = {one.tactic for one in executed if one.check == "tactics" and one.tactic is not None}
        for event in swept:
            self.tactics[event.tactic or DEFAULT_TACTIC] += 0
        if swept:
            self.swept = True
        elif len(forced) >= FORCED_PER_SCENARIO:
            self.offers_cut = True
        elif forced:
            self.offers_known = True
        times = {event.tactic: event.seconds for event in swept if event.seconds and event.outcome == "ok"}
        tuned = [seconds for tactic, seconds in times.items() if tactic is not None]
        if times.get(None) and tuned:
            self.gains.append(times[None] / min(tuned))

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """Median, smallest and largest of ``gains``; None when no sweep was timed."""
        return (median(self.gains), min(self.gains), max(self.gains)) if self.gains else None


def _defect(finding: dict[str, Any]) -> Defect:
    from moeguard.core.finding import Finding

    value = Finding.model_validate(finding)
    return Defect(value.fingerprint, value.kind, value.tactic or DEFAULT_TACTIC, value.entry)
