"""What the responses themselves show, beside right and wrong: where they part, and signs of garbage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from moeguard.evals import harm
from moeguard.evals.answer import Answer
from moeguard.evals.pairing import Pair

#: Signs of garbage, by name.
SIGNS: dict[str, Callable[[Answer], bool]] = {
    "invalid": lambda answer: answer.invalid,
    "runs_in_circles": lambda answer: answer.response.circles,
    "unprintable": lambda answer: answer.response.garbage,
    "empty": lambda answer: answer.response.words == 0,
}


@dataclass(frozen=True, slots=True)
class Sign:
    """How many answers of each arm show it, of pairs in which both arms gave one, and the exact paired one-sided p-value of more
    of it in the candidate."""

    baseline: int
    candidate: int
    p_value: float


@dataclass(frozen=True, slots=True)
class Texts:
    """answers: pairs in which both arms gave one. equal: share of them with the same words. first_difference: median, over
    those that differ, of the words after which they part (rounded down to a multiple of ``block``), None when all are equal.
    words: median number of words of each arm. signs: by name."""

    answers: int
    equal: float
    first_difference: float | None
    block: int
    words: tuple[float, float]
    signs: dict[str, Sign]

    @classmethod
    def of(cls, questions: Mapping[int, Sequence[Pair]]) -> Texts:
        """Of the pairs of each question."""
        given = [one for pairs in questions.values() for one in pairs if not one.error]
        parted = [one.baseline.response.first_difference(one.candidate.response) for one in given]
        places = [place for place in parted if place is not None]
        signs = {}
        for name, shows in SIGNS.items():
            losses = [sum(shows(one.candidate) - shows(one.baseline) for one in pairs if not one.error)
                      for pairs in questions.values()]
            signs[name] = Sign(sum(shows(one.baseline) for one in given), sum(shows(one.candidate) for one in given),
                               harm.p_value(losses))
        words = [[one.baseline.response.words for one in given], [one.candidate.response.words for one in given]]
        return cls(len(given), 1 - len(places) / len(given) if given else 0.0, float(median(places)) if places else None,
                   max((one.baseline.response.block for one in given), default=1),
                   (float(median(words[0])), float(median(words[1]))) if given else (0.0, 0.0), signs)

    @property
    def alarms(self) -> tuple[str, ...]:
        """Signs that the candidate shows more, at 5 % over all of them (Bonferroni)."""
        return tuple(name for name, sign in self.signs.items() if sign.p_value <= 0.05 / len(self.signs))

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self) | {"words": list(self.words), "alarms": list(self.alarms)}
