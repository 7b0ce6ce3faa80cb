"""The result of a spot check, from its manifest and journal alone: the same after a resume, and for the gate."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moeguard.core.errors import RunDirectoryError
from moeguard.evals.answer import Answer
from moeguard.evals.comparison import EXIT_CODES, Comparison, Outcome
from moeguard.evals.options import Options
from moeguard.evals.pairing import judged_filter, pair
from moeguard.evals.record import Event

BASELINE, AGAIN, CANDIDATE = "baseline", "again", "candidate"
ARMS = (BASELINE, AGAIN, CANDIDATE)
#: Two-sided p-value below which two runs of the baseline are not alike.
UNLIKE = 0.01


@dataclass(frozen=True, slots=True)
class Arm:
    """answers: how many questions x repeats were answered. errors: of them, without an answer. retries: repeated attempts, by
    kind."""

    answers: int
    errors: int
    retries: dict[str, int]

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"answers": self.answers, "errors": self.errors, "retries": self.retries}


@dataclass(frozen=True, slots=True)
class Result:
    """arms: by name. compared: by filter, empty when nothing can be compared. judged: the filter that the verdict is about.
    noise: the A/A comparison, None without one. lost: why the run is not complete, None when it is."""

    task: str
    margin: float
    arms: dict[str, Arm]
    compared: dict[str, Comparison]
    judged: str | None
    noise: Comparison | None
    lost: str | None

    @classmethod
    def of(cls, options: Options, events: Sequence[Event]) -> Result:
        """From the journal. Raises RunDirectoryError when an event is damaged, MoeguardError when the arms do not fit."""
        answers = answers_by_arm(events)
        arms = {name: _arm(name, events) for name in ARMS if name in answers}
        ends = [event for event in events if event["event"] in ("finished", "lost")]
        lost = None if ends and ends[-1]["event"] == "finished" else str(ends[-1]["reason"]) if ends else "it was interrupted"
        void = next((str(event["reason"]) for event in events if event["event"] == "void"), None)
        noise = next(iter(_compare(answers, AGAIN, options, None).values()), None)
        doubt = f"the run is not complete: {lost}" if lost else void or _unlike(noise)
        compared = _compare(answers, CANDIDATE, options, doubt)
        return cls(options.task, options.margin, arms, compared, judged_filter(compared) if compared else None, noise, lost)

    @property
    def comparison(self) -> Comparison | None:
        """The one that the verdict is about."""
        return None if self.judged is None else self.compared[self.judged]

    @property
    def outcome(self) -> Outcome:
        """The verdict as one word."""
        return "cannot_tell" if self.comparison is None else self.comparison.outcome

    @property
    def exit_code(self) -> int:
        """0 not worse, 1 worse, 3 cannot tell."""
        return EXIT_CODES[self.outcome]

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return "cannot tell with this n" if self.comparison is None else self.comparison.verdict

    @property
    def sentence(self) -> str:
        """One sentence."""
        return (f"{self.task}: cannot tell: {self.lost or 'nothing was answered in both arms'}" if self.comparison is None
                else self.comparison.sentence)

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"task": self.task, "verdict": self.verdict, "outcome": self.outcome, "sentence": self.sentence,
                "margin": self.margin, "complete": self.lost is None, "lost": self.lost, "filter": self.judged,
                "filters": {name: one.to_data() for name, one in self.compared.items()},
                "noise": self.noise and self.noise.to_data(),
                "arms": {name: one.to_data() for name, one in self.arms.items()}}


def answers_by_arm(events: Iterable[Event]) -> dict[str, list[Answer]]:
    """All answers. Raises RunDirectoryError when one is damaged."""
    found: defaultdict[str, list[Answer]] = defaultdict(list)
    for event in events:
        if event["event"] == "answers":
            try:
                found[event["arm"]] += [Answer.from_data(one) for one in event["answers"]]
            except (KeyError, TypeError, ValueError):
                raise RunDirectoryError("answers.jsonl: an answer is damaged") from None
    return dict(found)


def capital(answers: Mapping[str, Sequence[Answer]], options: Options) -> float:
    """The evidence of harm so far, see moeguard.evals.harm."""
    compared = _compare(answers, CANDIDATE, options, None)
    return compared[judged_filter(compared)].evidence if compared else 1.0


def _compare(answers: Mapping[str, Sequence[Answer]], other: str, options: Options, doubt: str | None) -> dict[str, Comparison]:
    """By filter, over the questions that both arms have answered as often as they are to."""
    both = _whole(answers.get(BASELINE, ()), options.repeats) & _whole(answers.get(other, ()), options.repeats)
    if not both:
        return {}
    ours, theirs = ([one for one in answers[name] if (one.filter, one.doc_id) in both] for name in (BASELINE, other))
    return {name: Comparison.of(task, name, pairs, options.margin, looks=options.early_stop and other == CANDIDATE, doubt=doubt)
            for (task, name), pairs in pair(ours, theirs).items()}


def _whole(answers: Iterable[Answer], repeats: int) -> set[tuple[str, int]]:
    counts = Counter((one.filter, one.doc_id) for one in answers)
    return {key for key, number in counts.items() if number == repeats}


def _unlike(noise: Comparison | None) -> str | None:
    if noise is None or noise.p_two_sided > UNLIKE:
        return None
    return f"two runs of the baseline differ by more than chance (p = {noise.p_two_sided:.2g})"


def _arm(name: str, events: Iterable[Event]) -> Arm:
    retries: Counter[str] = Counter()
    asked: set[tuple[int, int]] = set()
    missing: set[tuple[int, int]] = set()
    for event in events:
        if event.get("arm") == name:
            retries.update(event.get("retries", {}))
            for one in event.get("answers", ()):
                asked.add((one["doc_id"], one["repeat"]))
                if one["error"]:
                    missing.add((one["doc_id"], one["repeat"]))
    return Arm(len(asked), len(missing), dict(sorted(retries.items())))
