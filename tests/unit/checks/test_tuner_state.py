"""What the checks conclude about a tuner: caps that stick, and tunings that prove nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest

import moeguard
from moeguard.backends.protocol import VacuousTuning
from moeguard.checks.plan import run_checks
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.core.events import Event, Executed
from moeguard.mutants.base import Pipeline, Prepared
from moeguard.mutants.broken_state import StickyCap
from moeguard.mutants.broken_tactics import TuningProvesNothing
from moeguard.mutants.healthy import HealthyTuning
from moeguard.mutants.split import Split
from moeguard.tensors.operand import Batch

CASE = Case.model_validate({"shape": {"num_tokens": 5, "hidden_size": 24, "intermediate_size": 16, "num_experts": 4, "top_k": 2}})
ONLY = frozenset({"tuner"})


def session(backend: Pipeline, resources: Resources | None = None, only: frozenset[str] | None = ONLY,
            tactic: str | None = None, seen: list[Event] | None = None) -> Session:
    done = Session(backend, CASE, resources or Resources(), emit=(seen if seen is not None else []).append)
    run_checks(done, only, tactic)
    return done


class Answering(Pipeline):
    """Gives the answers that it was made with, and counts how often it is asked."""

    name = "answering"

    def __init__(self, answers: Any) -> None:
        super().__init__()
        self.answers, self.asked = answers, list[tuple[int, ...]]()

    def tuning_caps(self, prepared: Prepared, batch: Batch, caps: Sequence[int]) -> Any:
        self.asked.append(tuple(caps))
        return self.answers


def test_a_sticky_cap_is_stale_state() -> None:
    (finding,) = session(StickyCap()).findings
    assert (finding.kind, finding.check, finding.tactic) == ("stale_state", "tuner", None)
    assert finding.sentence == "after caps 8192, 512, 8192 the tuner works with 512"
    assert finding.numbers == {"caps": [8192, 512, 8192], "answers": [8192, 512, 512], "asked": 8192, "worked_with": 512}


def test_no_other_check_sees_a_sticky_cap() -> None:
    assert [finding.check for finding in session(StickyCap(), only=None).findings] == ["tuner"]


def test_a_cap_that_never_changes_again_is_found_at_the_second() -> None:
    (finding,) = session(Answering([8192, 8192, 8192])).findings
    assert finding.sentence == "after caps 8192, 512 the tuner works with 8192"


@pytest.mark.parametrize("answers", [[8192, 512, 8192], [4096, 512, 4096], [512, 512, 512]])
def test_no_finding_when_all_is_honoured_or_the_first_cap_was_not(answers: list[int]) -> None:
    seen: list[Event] = []
    done = session(Answering(answers), seen=seen)
    assert not done.findings and not done.notes
    assert [event.role for event in seen if isinstance(event, Executed) and event.check == "tuner"] == ["after caps"]


def test_a_backend_is_asked_once_for_each_recipe_and_says_the_same_again() -> None:
    resources, backend = Resources(), Answering([8192, 512, 512])
    assert [len(session(backend, resources).findings) for _ in range(3)] == [1, 1, 1]
    assert backend.asked == [(8192, 512, 8192)]


@pytest.mark.parametrize("backend", [Answering(None), HealthyTuning(), Split()], ids=["none", "healthy", "without"])
def test_what_is_not_verified_is_noted(backend: Pipeline) -> None:
    backend.name = "noted"
    notes = [note.reason for note in session(backend).notes if note.what == "tuner"]
    assert notes == {Answering: ["the backend says that its tuner keeps no cap"],
                     Split: ["the backend has no tuning_caps()"]}.get(type(backend), [])


@pytest.mark.parametrize("answers", [[8192], ["many", 1, 2], 7])
def test_answers_of_another_form_are_a_crash_of_the_backend(answers: Any) -> None:
    (finding,) = session(Answering(answers)).findings
    assert (finding.kind, finding.check) == ("crash", "tuner") and finding.sentence.startswith("tuning_caps raised")


def test_a_vacuous_tuning_is_a_finding_and_nothing_is_said_about_the_default() -> None:
    done = session(TuningProvesNothing(), only=frozenset({"tuned"}))
    (finding,) = done.findings
    assert (finding.kind, finding.check, finding.tactic) == ("vacuous_autotune", "tuned", None)
    assert finding.sentence == "tuning proved nothing: each of the 3 tactics failed while it was timed"
    assert not any(note.what == "autotuning" for note in done.notes)


def test_a_vacuous_tuning_without_a_reason() -> None:
    class Silent(Split):
        name = "silent"

        def tune(self, prepared: Prepared, batch: Batch) -> Hashable | None:
            raise VacuousTuning

    assert session(Silent(), only=frozenset({"tuned"})).findings[0].sentence == (
        "tuning proved nothing: the backend gave no reason")


def test_a_vacuous_tuning_offers_no_tactic_to_replay() -> None:
    done = session(TuningProvesNothing(), tactic="fastest")
    assert [finding.kind for finding in done.findings] == ["vacuous_autotune"]
    assert [note.reason for note in done.notes] == ["tactic fastest is not offered for this case; offered: whole, halves, thirds"]


def test_the_exception_is_public_and_no_refusal() -> None:
    from moeguard.backends.protocol import REFUSALS

    assert moeguard.VacuousTuning is VacuousTuning and "VacuousTuning" in moeguard.__all__
    assert not issubclass(VacuousTuning, REFUSALS)
    assert not moeguard.check(TuningProvesNothing(), CASE).passed
