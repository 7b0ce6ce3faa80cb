"""What one cell has shown, counted from the events of its scenarios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, NamedTuple

from moeguard.core.events import Event, Executed, Found, Noted, ScenarioStarted, Swept
from moeguard.core.tokens import token_bucket
from moeguard.gate.pair import singles_of

#: The name of the tactic that an untuned call gets.
DEFAULT_TACTIC = "default"
#: Tactics that a campaign forces in one scenario (moeguard.checks.tactics): one that forced fewer was offered no more.
FORCED_PER_SCENARIO = 8
#: Groups of checks whose executions are the case itself, with the case's own input.
SAME_CALL = ("values", "memory", "repeat", "tactics", "tuned")
#: Findings of checks that ask something beside the case, by check and kind: the state of a tuner, which is about its range, and
#: weights of another release. They say nothing about how the case is answered.
BESIDE = {("tuner", "stale_state"): "tuning_range", ("tuner", "tuning_range"): "tuning_range",
          ("layout", "layout_contract"): "layout_contract"}
_JUDGED = ("ok", "finding", "refused")


class Defect(NamedTuple):
    """What a finding is about. tactic: ``default`` or its name. entry: id of the ledger entry, None when it is open.

    beside: whether it says nothing about how the case is answered.
    """

    fingerprint: str
    kind: str
    tactic: str
    entry: str | None
    beside: bool = False


class Shape(NamedTuple):
    """Sizes of a problem: tokens, hidden size, intermediate size, experts, top-k."""

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int

    def __str__(self) -> str:
        return f"T={self.tokens} H={self.hidden} I={self.intermediate} E={self.experts} K={self.top_k}"


@dataclass(slots=True)
class Stratum:
    """Fingerprints of distinct cases of one token bucket, drawn or given, that one tactic was judged on."""

    clean: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Tally:
    """Counts of one cell; those of several runs add up with ``add``.

    executed: calls with a verdict, by tactic. clean: fingerprints of distinct cases that were drawn and had no finding.
    failed, excused: of those that had an open one, and of those that had known ones alone or were not launched because of a
    known crash, each with the tactics at fault. tactics: judged calls by tactic that was seen or offered, a burst being one.
    right: tactics with a right answer. offers_known: a scenario forced fewer tactics than a campaign may, so all.
    offers_cut: one forced as many as it may, so perhaps not all. swept: a sweep forced every one. tokens: T of judged cases.
    strata: by token bucket and tactic. reruns: judged executions by tactic and case, all of a burst. shapes: where each
    defect was seen. times: seconds by tactic that was right, ``default`` included, one table for each layer and T of a timed
    sweep. quarantined: defects of the tactics that ``without`` left out.
    """

    executed: Counter[str] = field(default_factory=Counter)
    clean: set[str] = field(default_factory=set)
    failed: dict[str, set[str]] = field(default_factory=dict)
    excused: dict[str, set[str]] = field(default_factory=dict)
    tactics: Counter[str] = field(default_factory=Counter)
    right: set[str] = field(default_factory=set)
    offers_known: bool = False
    offers_cut: bool = False
    swept: bool = False
    tokens: set[int] = field(default_factory=set)
    strata: dict[tuple[int, str], Stratum] = field(default_factory=dict)
    reruns: Counter[tuple[str, str]] = field(default_factory=Counter)
    defects: set[Defect] = field(default_factory=set)
    shapes: dict[Defect, set[Shape]] = field(default_factory=dict)
    times: list[dict[str, float]] = field(default_factory=list)
    quarantined: set[Defect] = field(default_factory=set)

    @property
    def executions(self) -> int:
        """Calls with a verdict."""
        return self.executed.total()

    @property
    def empty(self) -> bool:
        """Whether nothing was executed and nothing was found."""
        return not self.executed and not self.defects

    def add(self, other: Tally) -> None:
        """Take over what another run has shown for the same cell."""
        self.executed.update(other.executed)
        self.clean |= other.clean
        for mine, theirs in ((self.failed, other.failed), (self.excused, other.excused)):
            for case, tactics in theirs.items():
                mine.setdefault(case, set()).update(tactics)
        self.tactics.update(other.tactics)
        self.right |= other.right
        self.offers_known |= other.offers_known
        self.offers_cut |= other.offers_cut
        self.swept |= other.swept
        self.tokens |= other.tokens
        for place, stratum in other.strata.items():
            held = self.strata.setdefault(place, Stratum())
            held.clean |= stratum.clean
            held.failed |= stratum.failed
        self.reruns.update(other.reruns)
        self.defects |= other.defects
        for defect, shapes in other.shapes.items():
            self.shapes.setdefault(defect, set()).update(shapes)
        self.times += other.times
        self.quarantined |= other.quarantined

    def without(self, quarantined: Collection[str]) -> Tally:
        """The counts over all other tactics. Cases in which these tactics alone failed prove nothing: they count as excused.

        A pair with one of these cannot be chosen either: it is not counted, but what was found of it stays.
        """
        gone = set(quarantined)
        unused = {name for name in self.tactics | self.executed if name in gone or gone & set(singles_of(name))}
        failed = {case: tactics for case, tactics in self.failed.items() if not tactics <= gone}
        excused = self.excused | {case: tactics for case, tactics in self.failed.items() if tactics <= gone}
        return replace(
            self, failed=failed, excused=excused, right=self.right - unused,
            executed=Counter({name: number for name, number in self.executed.items() if name not in unused}),
            tactics=Counter({name: number for name, number in self.tactics.items() if name not in unused}),
            strata={place: stratum for place, stratum in self.strata.items() if place[1] not in unused},
            reruns=Counter({place: number for place, number in self.reruns.items() if place[0] not in unused}),
            times=[{name: seconds for name, seconds in row.items() if name not in unused} for row in self.times],
            defects={one for one in self.defects if one.tactic not in gone},
            quarantined=self.quarantined | {one for one in self.defects if one.tactic in gone})

    def count(self, started: ScenarioStarted, events: Iterable[Event], *, drawn: bool = True) -> None:
        """Count one scenario. Raises ValueError or KeyError on events that no run can have written.

        drawn: the case comes from a profile's distribution, which is what the failure rate is about. One that was given
        (replay, sweep), or that was cut short, counts when it fails, for tactics, strata and tokens, but not as a clean case.
        """
        executed: list[Executed] = []
        swept: list[Swept] = []
        defects: set[Defect] = set()
        whole = True
        for event in events:
            match event:
                case Executed():
                    executed.append(event)
                case Found():
                    defects.add(self._found(event.finding))
                case Swept():
                    swept.append(event)
                case Noted(what="tactics", reason="the backend offers none"):
                    self.offers_known = True
                case Noted(what="known crash"):  # it was not launched
                    self.excused.setdefault(started.fingerprint, set()).add(DEFAULT_TACTIC)
                case Noted(what="budget" | "memory" | "disk space"):  # it ended before its last check
                    drawn, whole = False, False
        for one in executed:
            self._execution(one, started.fingerprint)
        self._offers(executed, swept, whole=whole and not any(defect.kind in ("crash", "hang") for defect in defects))
        executed = [one for one in executed if one.check not in {check for check, _ in BESIDE}]
        for defect in defects:
            self.tactics[defect.tactic] += 0
        if not (defects or any(one.outcome in _JUDGED for one in executed)):
            return
        wrong = {one.tactic or DEFAULT_TACTIC for one in executed if one.outcome == "finding"}
        about = {defect for defect in defects if not defect.beside}
        known = bool(about) and all(defect.entry is not None for defect in about)
        if known:
            self.excused.setdefault(started.fingerprint, set()).update(defect.tactic for defect in about)
        elif about or wrong:
            self.failed.setdefault(started.fingerprint, set()).update(wrong | {defect.tactic for defect in about})
        elif drawn:
            self.clean.add(started.fingerprint)
        tokens = int(started.case["shape"]["num_tokens"])
        self.tokens.add(tokens)
        self._strata(started.fingerprint, token_bucket(tokens), executed, about)

    def _found(self, finding: dict[str, Any]) -> Defect:
        from moeguard.core.finding import Finding

        value = Finding.model_validate(finding)
        beside = BESIDE.get((value.check, value.kind))
        defect = Defect(value.fingerprint, beside or value.kind, value.tactic or DEFAULT_TACTIC, value.entry, beside is not None)
        shape = value.case.shape
        self.defects.add(defect)
        self.shapes.setdefault(defect, set()).add(
            Shape(shape.num_tokens, shape.hidden_size, shape.intermediate_size, shape.num_experts, shape.top_k))
        return defect

    def _execution(self, one: Executed, case: str) -> None:
        tactic, judged = one.tactic or DEFAULT_TACTIC, one.outcome in _JUDGED
        self.executed[tactic] += one.count
        self.tactics[tactic] += judged
        if one.outcome == "ok":
            self.right.add(tactic)
        if judged and one.check in SAME_CALL:
            self.reruns[tactic, case] += one.count

    def _strata(self, case: str, bucket: int, executed: list[Executed], defects: set[Defect]) -> None:
        """Count the case for each tactic that was judged on it; one with known findings alone is neither clean nor failed."""
        found = {defect.tactic: False for defect in defects} | {defect.tactic: True for defect in defects if defect.entry is None}
        judged = {one.tactic or DEFAULT_TACTIC for one in executed if one.outcome in _JUDGED}
        wrong = {one.tactic or DEFAULT_TACTIC for one in executed if one.outcome == "finding"}
        for tactic in judged | set(found):
            failed = found.get(tactic, tactic in wrong)
            if failed or tactic not in found:
                stratum = self.strata.setdefault((bucket, tactic), Stratum())
                (stratum.failed if failed else stratum.clean).add(case)

    def _offers(self, executed: list[Executed], swept: list[Swept], *, whole: bool) -> None:
        """Take over the tactics that the scenario shows, and whether these are all, which one that ended early does not tell."""
        forced = {one.tactic for one in executed if one.check == "tactics" and one.tactic is not None}
        for event in swept:
            self.tactics[event.tactic or DEFAULT_TACTIC] += 0
        if swept:
            self.swept = True
        elif len(forced) >= FORCED_PER_SCENARIO:
            self.offers_cut = True
        elif forced and whole:
            self.offers_known = True
        times = {event.tactic or DEFAULT_TACTIC: event.seconds for event in swept if event.seconds and event.outcome == "ok"}
        if times:
            self.times.append(times)

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """Time of the default over that of the fastest right tactic: median, smallest and largest; None without both."""
        gains = [row[DEFAULT_TACTIC] / min(others) for row in self.times
                 if DEFAULT_TACTIC in row and (others := [row[name] for name in row if name != DEFAULT_TACTIC])]
        return (median(gains), min(gains), max(gains)) if gains else None
