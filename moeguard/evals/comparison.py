"""The verdict on a candidate: not worse by more than a margin, worse, or cannot tell; with the figures behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from moeguard.evals import clusters, harm, margin
from moeguard.evals.pairing import Pair, by_question
from moeguard.evals.power import ALPHA, Plan
from moeguard.evals.texts import Texts

Outcome = Literal["not_worse", "worse", "cannot_tell"]
#: Error rate that looks during a run may spend, all of them together; the look at its end has the rest.
LOOKS = 0.01
#: Exit code by outcome.
EXIT_CODES: dict[Outcome, int] = {"not_worse": 0, "worse": 1, "cannot_tell": 3}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one task and filter. All rates and drops are shares of answers, a drop being positive when the candidate is worse.

    questions, repeats: answers are questions x repeats in each arm. right: of baseline and candidate. losses, gains: pairs that
    are right in the baseline alone, in the candidate alone; pairs with an error in either arm left out. errors: answers that were
    not given, of baseline and candidate. drop: estimate over the pairs that are left. interval: 95 % bootstrap interval of the
    drop over the same pairs, clustered by question. upper_bound: of the drop, one-sided 95 %; errors count as if the candidate
    were wrong and the baseline right. p_value: exact, one-sided, of "no drop" (McNemar; by question where there are repeats);
    p_two_sided: of "no difference". alpha: below which a p-value means worse. evidence: the betting martingale's. stopped:
    whether that shows harm by itself. doubt: why the run tells nothing, whatever the figures.
    """

    task: str
    filter: str
    questions: int
    repeats: int
    right: tuple[int, int]
    losses: int
    gains: int
    errors: tuple[int, int]
    drop: float
    interval: tuple[float, float]
    upper_bound: float
    margin: float
    p_value: float
    p_two_sided: float
    alpha: float
    evidence: float
    stopped: bool
    doubt: str | None
    texts: Texts
    plan: Plan

    @classmethod
    def of(cls, task: str, name: str, pairs: Sequence[Pair], allowed: float, *, looks: bool = False, doubt: str | None = None,
           alpha: float = ALPHA) -> Comparison:
        """Compare. allowed: the margin. looks: whether the run was looked at before its end, which costs some of ``alpha``."""
        questions = by_question(pairs)
        repeats = max(len(those) for those in questions.values())
        losses = [sum(_loss(one) for one in those) for those in questions.values()]
        worst = [sum(_worst(one) for one in those) for those in questions.values()]
        lost, gained = sum(_loss(one) > 0 for one in pairs), sum(_loss(one) < 0 for one in pairs)
        n, left = len(questions), sum(not one.error for one in pairs)
        answered = [sum(_loss(one) for one in those) for those in questions.values() if not all(one.error for one in those)]
        interval = clusters.interval(answered, left / len(answered)) if left else (0.0, 0.0)
        capital = harm.evidence(losses, repeats)
        upper = (margin.upper_bound(sum(w > 0 for w in worst), sum(w < 0 for w in worst), n, alpha) if repeats == 1
                 else clusters.upper_bound(worst, repeats, alpha))
        return cls(task, name, n, repeats, (sum(one.baseline.right for one in pairs), sum(one.candidate.right for one in pairs)),
                   lost, gained, (sum(one.baseline.error for one in pairs), sum(one.candidate.error for one in pairs)),
                   (lost - gained) / left if left else 0.0, interval, upper, allowed,
                   harm.p_value(losses), min(1.0, 2 * min(harm.p_value(losses), harm.p_value([-one for one in losses]))),
                   alpha - LOOKS if looks else alpha, capital, looks and capital >= 1 / LOOKS, doubt,
                   Texts.of(questions), Plan.of(n, (lost + gained) / len(pairs), allowed))

    @property
    def disagreement(self) -> float:
        """Share of the answers that are right in one arm alone."""
        return (self.losses + self.gains) / (self.questions * self.repeats)

    @property
    def outcome(self) -> Outcome:
        """The verdict as one word. It is never better than what was shown: ignorance is ``cannot_tell``."""
        if self.doubt is not None:
            return "cannot_tell"
        if self.stopped:
            return "worse"
        if self.upper_bound < self.margin:
            return "not_worse"
        return "worse" if self.p_value <= self.alpha else "cannot_tell"

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        words = {"not_worse": f"not worse by more than {self.margin:g}", "worse": "worse",
                 "cannot_tell": "cannot tell with this n"}
        return words[self.outcome]

    @property
    def exit_code(self) -> int:
        """0 not worse, 1 worse, 3 cannot tell."""
        return EXIT_CODES[self.outcome]

    @property
    def sentence(self) -> str:
        """The verdict and the figures that it rests on."""
        if self.doubt is not None:
            return f"{self.task}: cannot tell: {self.doubt}"
        n = f"{self.questions} questions" + (f" x {self.repeats}" if self.repeats > 1 else "")
        drop = f"the drop is {100 * self.drop:.2f} points"
        if self.outcome == "worse":
            early = ", stopped early for harm" if self.stopped else f", p = {self.p_value:.2g}"
            return f"{self.task}: worse: {drop} over {n}{early}"
        bound = f"at most {100 * self.upper_bound:.2f} with 95 % confidence"
        if self.outcome == "not_worse":
            smaller = ", yet a drop is there" if self.p_value <= self.alpha else ""
            return f"{self.task}: {self.verdict}: {drop}, {bound}, over {n}{smaller}"
        return f"{self.task}: cannot tell with this n: {drop}, {bound}, {100 * self.margin:g} allowed, over {n}"

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return plain | {"verdict": self.verdict, "outcome": self.outcome, "sentence": self.sentence,
                        "texts": self.texts.to_data(), "plan": self.plan.to_data()}


def _loss(one: Pair) -> int:
    """1 when it is right in the baseline alone, -1 in the candidate alone; an error says nothing about right and wrong."""
    return 0 if one.error else int(one.baseline.right) - int(one.candidate.right)


def _worst(one: Pair) -> int:
    """The same, where an error of the baseline counts as right and one of the candidate as wrong."""
    return int(one.baseline.right or one.baseline.error) - int(one.candidate.right)
