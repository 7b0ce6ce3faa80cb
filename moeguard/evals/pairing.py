"""Two arms, question by question: only answers to the same prompt are compared, and all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from moeguard.core.errors import MoeguardError
from moeguard.evals.answer import Answer

#: Must be equal in both arms, with the reason why it may not be.
SAME = {"doc_hash": "another question", "prompt_hash": "another prompt", "target_hash": "another target",
        "arguments_hash": "other generation arguments"}
#: The filter that is judged when there are several: it finds an answer whatever its form, so that a change of form alone,
#: which ``strict-match`` shows, is not taken for a wrong answer.
USUAL_FILTER = "flexible-extract"


@dataclass(frozen=True, slots=True)
class Pair:
    """One answer of each arm to the same prompt."""

    baseline: Answer
    candidate: Answer

    @property
    def error(self) -> bool:
        """Whether an arm gave no answer, so that nothing can be compared."""
        return self.baseline.error or self.candidate.error


def pair(baseline: Iterable[Answer], candidate: Iterable[Answer]) -> dict[tuple[str, str], list[Pair]]:
    """All answers in pairs, by (task, filter), ordered by question and repeat.

    Raises MoeguardError with the first difference when the arms were not asked the same.
    """
    ours, theirs = _by_key(baseline, "A"), _by_key(candidate, "B")
    for key in sorted(ours.keys() ^ theirs.keys()):
        there, missing = ("A", "B") if key in ours else ("B", "A")
        raise MoeguardError(f"{_place(key)} is in {there} and not in {missing}; allowed: the same questions in both")
    pairs: defaultdict[tuple[str, str], list[Pair]] = defaultdict(list)
    for key, one in sorted(ours.items()):
        other = theirs[key]
        for name, words in SAME.items():
            if getattr(one, name) != getattr(other, name):
                raise MoeguardError(f"{_place(key)} has {words} in B than in A ({name} {getattr(other, name)[:12]} and "
                                    f"{getattr(one, name)[:12]}); allowed: equal ones")
        pairs[key[0], key[1]].append(Pair(one, other))
    return dict(pairs)


def judged_filter(filters: Iterable[str], wanted: str | None = None) -> str:
    """The filter that the verdict is about. Raises MoeguardError when ``wanted`` is not there."""
    there = sorted(filters)
    if wanted is not None and wanted not in there:
        raise MoeguardError(f"--filter: {wanted!r}; allowed: {', '.join(there)}")
    return wanted or (USUAL_FILTER if USUAL_FILTER in there else there[0])


def by_question(pairs: Iterable[Pair]) -> Mapping[int, list[Pair]]:
    """The pairs of each question, by doc_id."""
    questions: defaultdict[int, list[Pair]] = defaultdict(list)
    for one in pairs:
        questions[one.baseline.doc_id].append(one)
    return questions


def _by_key(answers: Iterable[Answer], name: str) -> dict[tuple[str, str, int, int], Answer]:
    found: dict[tuple[str, str, int, int], Answer] = {}
    for answer in answers:
        if answer.key in found:
            raise MoeguardError(f"{_place(answer.key)} is twice in {name}; allowed: once")
        found[answer.key] = answer
    return found


def _place(key: tuple[str, str, int, int]) -> str:
    task, name, doc, repeat = key
    again = f", repeat {repeat}" if repeat else ""
    return f"task {task}, filter {name}, doc_id {doc}{again}"
