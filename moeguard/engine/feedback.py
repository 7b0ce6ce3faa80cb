"""Feedback: what the rounds so far ask of the next one, folded from their events round by round.

Nothing else carries over from round to round, and nothing changes within one. A resumed campaign folds the same events
from its journal, so that what it does next depends neither on workers nor on kills. Hypothesis' own ``target()`` is not used: it
steers the draws of one process while they are executed there, whereas a round is drawn before it runs, by any process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from moeguard.core.case import Case
from moeguard.core.events import Event, Executed, Found, Noted, ScenarioFinished, ScenarioStarted
from moeguard.core.finding import Finding
from moeguard.core.tokens import token_bucket
from moeguard.engine.margins import margins
from moeguard.engine.options import Options
from moeguard.fuzz.profiles import profile
from moeguard.fuzz.steering import Focus

#: Scenarios that a backend may lose to crashes and hangs before it is suspended.
SUSPEND_AFTER = 5
#: Findings that are shrunk in one round.
SHRINKS_PER_ROUND = 4
#: Findings, the last ones, near which a round looks. Crashes and hangs are left out: each costs a process.
NEAR = 8
#: Scenarios after which a stratum that gave no verdict is given up.
BARREN = 8
LOST = ("crash", "hang")
#: Checks that execute the case itself: their margins are targets.
TARGETED = frozenset({"values", "memory", "repeat", "tactics"})
#: Targets near which a round looks, those nearest to a limit first, and rounds after which one that is not surpassed is left.
TARGETS, STALE = 8, 8


class _Target(NamedTuple):
    """The share of a limit that a right answer took, the round in which it did, and its case as JSON data."""

    share: float
    round: int
    case: dict[str, Any]


class Feedback:
    """The fold. suspended: by backend, the scenario after which it is not launched any more."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lost: Counter[str] = Counter()
        self.suspended: dict[str, int] = {}
        self._fresh: dict[str, tuple[int, Finding]] = {}
        self._handled: set[str] = set()
        self._tried: Counter[tuple[str, str, int]] = Counter()
        self._covered: dict[tuple[str, str], dict[str | None, Counter[int]]] = {}
        self._round = 0
        self._nearest: dict[tuple[str, str, str], _Target] = {}

    def may_launch(self, backend: str, scenario: int, finished: Mapping[int, ScenarioFinished]) -> bool:
        """Whether ``scenario`` comes before the suspension of ``backend``, as far as the ``finished`` ones of the round show."""
        if backend in self.suspended:
            return scenario <= self.suspended[backend]
        lost = sum(event.status in LOST and number < scenario and self._backend(number) == backend
                   for number, event in finished.items())
        return self._options.sweep or self._lost[backend] + lost < SUSPEND_AFTER

    def suspend(self, finished: Mapping[int, ScenarioFinished]) -> list[str]:
        """Count the losses of a whole round, in the order of its scenarios; the backends that are suspended by them."""
        before = set(self.suspended)
        for number in sorted(finished):
            backend = self._backend(number)
            if finished[number].status in LOST and backend not in self.suspended and not self._options.sweep:
                self._lost[backend] += 1
                if self._lost[backend] == SUSPEND_AFTER:
                    self.suspended[backend] = number
        return sorted(set(self.suspended) - before)

    def close(self, scenarios: Mapping[int, Sequence[Event]]) -> None:
        """Take over the events of a round that has ended, by scenario."""
        self._round += 1
        for number in sorted(scenarios):
            started: ScenarioStarted | None = None
            verdicts: set[str | None] = set()
            shares: dict[str, float] = {}
            whole, steady = False, True
            for event in scenarios[number]:
                match event:
                    case ScenarioStarted():
                        started = event
                    case Found(shrunk=False):
                        finding = Finding.model_validate(event.finding)
                        self._fresh.setdefault(finding.fingerprint, (number, finding))
                    case Executed(outcome="ok" | "finding") if event.check != "tuned":  # its tactic is a matter of times
                        verdicts.add(event.tactic)
                        if event.outcome == "ok" and event.check in TARGETED:
                            for rule, share in margins(event.numbers).items():
                                shares[rule] = max(share, shares.get(rule, 0.0))
                    case Noted(what="determinism"):  # its errors are a matter of chance
                        steady = False
                    case ScenarioFinished(status="clean" | "findings"):
                        whole = True
            if started is not None and whole:
                self._count(started, verdicts)
                if steady:
                    self._aim(started, shares)

    def to_shrink(self) -> list[tuple[int, Finding]]:
        """The findings that this round shrinks, with the scenario of each: they count as handled from now on.

        A known finding that does not fail the run stays on its first case: its entry holds a small one.
        """
        waiting = sorted((number, key) for key, (number, finding) in self._fresh.items()
                         if key not in self._handled and (self._options.strict or not finding.known))[:SHRINKS_PER_ROUND]
        self._handled |= {key for _, key in waiting}
        return [self._fresh[key] for _, key in waiting]

    def focus(self) -> Focus:
        """What the next round should look at."""
        failing = sorted(((number, finding.case) for number, finding in self._fresh.values()
                          if finding.kind not in LOST and (self._options.strict or not finding.known)),
                         key=lambda pair: pair[0])
        recipes = sorted({recipe for _, recipe in self._covered})
        return Focus({recipe: self._scarce(recipe) for recipe in recipes},
                     tuple(dict.fromkeys(case for _, case in failing[-NEAR:])), self._targets())

    def _aim(self, started: ScenarioStarted, shares: Mapping[str, float]) -> None:
        """Remember the case for each rule of its cell to whose limit none came nearer."""
        for rule, share in shares.items():
            place = started.backend, started.recipe, rule
            if place not in self._nearest or share > self._nearest[place].share:
                self._nearest[place] = _Target(share, self._round, started.case)

    def _targets(self) -> tuple[Case, ...]:
        """Cases of the targets that still move, those nearest to a limit first."""
        moving = sorted((-target.round, -target.share, place) for place, target in self._nearest.items()
                        if target.round > self._round - STALE and place[0] not in self.suspended)
        cases = (Case.model_validate(self._nearest[place].case) for *_, place in moving)
        return tuple(islice(dict.fromkeys(cases), TARGETS))

    def _count(self, started: ScenarioStarted, verdicts: set[str | None]) -> None:
        bucket = token_bucket(int(started.case["shape"]["num_tokens"]))
        self._tried[started.backend, started.recipe, bucket] += 1
        if verdicts:
            tactics = self._covered.setdefault((started.backend, started.recipe), {})
            for tactic in verdicts:
                tactics.setdefault(tactic, Counter())[bucket] += 1

    def _scarce(self, recipe: str) -> tuple[int, ...]:
        """Token buckets of the profile, those first in which some tactic of some backend has fewest scenarios."""
        most = profile(self._options.profile, self._options.device).max_tokens
        least: dict[int, int] = {}
        for bucket in (0, *(1 << power for power in range(most.bit_length()))):
            counts = [seen[bucket] for (backend, name), tactics in self._covered.items() if name == recipe
                      for seen in tactics.values()
                      if backend not in self.suspended and (seen[bucket] or self._tried[backend, recipe, bucket] < BARREN)]
            if counts:
                least[bucket] = min(counts)
        return tuple(sorted(least, key=lambda bucket: (least[bucket], bucket)))

    def _backend(self, scenario: int) -> str:
        return self._options.backends[scenario % len(self._options.backends)]
