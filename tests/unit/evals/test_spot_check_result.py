"""What a journal of a spot check says: doubts, partial runs, arms, and what a damaged one is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sample_records import record

from moeguard.core.errors import MoeguardError, RunDirectoryError
from moeguard.evals.answer import MISSING, Answer
from moeguard.evals.options import Options
from moeguard.evals.record import Record, parse_journal, parse_manifest
from moeguard.evals.response import Response
from moeguard.evals.result import Result

OPTIONS = Options.of(task="gsm8k", baseline_url="http://a", candidate_url="http://b", margin=0.1, again=True)
FINISHED = {"event": "finished"}


def answers(arm: str, wrong: range = range(0), n: int = 100, chunk: int = 0, **changes: Any) -> dict[str, Any]:
    """The event of one chunk."""
    kept = [Answer.of(record(doc, doc not in wrong, **changes), "gsm8k").to_data() for doc in range(n)]
    return {"event": "answers", "arm": arm, "chunk": chunk, "repeat": 0, "seconds": 1.0, "retries": {"429": 2}, "answers": kept}


def test_equal_arms() -> None:
    found = Result.of(OPTIONS, [answers("baseline"), answers("again"), answers("candidate"), FINISHED])
    assert (found.verdict, found.exit_code, found.lost) == ("not worse by more than 0.1", 0, None)
    assert found.arms["again"].to_data() == {"answers": 100, "errors": 0, "retries": {"429": 2}}


def test_a_baseline_that_differs_from_itself_tells_nothing() -> None:
    """Not even when the candidate looks as good as the first run."""
    found = Result.of(OPTIONS, [answers("baseline"), answers("again", range(20)), answers("candidate"), FINISHED])
    assert found.outcome == "cannot_tell" and "two runs of the baseline differ by more than chance" in found.sentence
    better = Result.of(OPTIONS, [answers("baseline", range(20)), answers("again"), answers("candidate"), FINISHED])
    assert better.outcome == "cannot_tell"


@pytest.mark.parametrize(("end", "reason"), [
    ([], "it was interrupted"), ([{"event": "lost", "reason": "the candidate was lost"}], "the candidate was lost")])
def test_a_run_that_is_not_complete_is_no_yes_and_no_no(end: list[dict[str, Any]], reason: str) -> None:
    for wrong in (range(0), range(50)):
        found = Result.of(OPTIONS, [answers("baseline"), answers("candidate", wrong), *end])
        assert (found.outcome, found.lost) == ("cannot_tell", reason) and reason in found.sentence
        assert found.comparison is not None and found.comparison.losses == len(wrong)  # what there is, is shown


def test_nothing_answered() -> None:
    found = Result.of(OPTIONS, [answers("baseline")])
    assert found.comparison is None and (found.outcome, found.exit_code) == ("cannot_tell", 3)


def test_an_answer_that_was_not_given() -> None:
    found = Result.of(OPTIONS, [answers("baseline"), answers("candidate", text=MISSING), FINISHED])
    assert found.comparison is not None and found.comparison.losses == 0 and found.comparison.errors == (0, 100)
    assert found.outcome == "cannot_tell"
    empty = Result.of(OPTIONS, [answers("baseline"), answers("candidate", range(100), text=""), FINISHED])
    assert empty.outcome == "worse"  # what a server gave through the relay it gave, also when it is nothing


def test_an_answer_that_the_baseline_did_not_give_may_have_been_right() -> None:
    found = Result.of(OPTIONS, [answers("baseline", text=MISSING), answers("candidate", range(100)), FINISHED])
    assert found.comparison is not None and found.comparison.drop == 0 and found.comparison.upper_bound > 0.99
    assert found.outcome == "cannot_tell"


def test_looks_during_the_run_cost_the_look_at_its_end() -> None:
    """13 lost and 5 gained have p = 0.048."""
    events = [answers("baseline", range(20, 25)), answers("candidate", range(13)), FINISHED]
    assert [Result.of(OPTIONS.model_copy(update={"early_stop": looks}), events).outcome for looks in (False, True)] == [
        "worse", "cannot_tell"]


def test_a_damaged_answer_is_named() -> None:
    event = answers("candidate")
    event["answers"][3]["right"] = "yes"
    with pytest.raises(RunDirectoryError, match="an answer is damaged"):
        Result.of(OPTIONS, [answers("baseline"), event])


def test_a_journal_whose_last_line_is_not_whole_goes_on(tmp_path: Path) -> None:
    kept = Record.create(tmp_path / "run", OPTIONS, {"arch": "cpu"})
    kept.add(FINISHED)
    file = tmp_path / "run" / "answers.jsonl"
    file.write_bytes(file.read_bytes() + b'{"event": "ans')
    assert Record.open(tmp_path / "run").events() == [FINISHED]
    file.write_bytes(b"nonsense\n" + file.read_bytes())
    with pytest.raises(MoeguardError, match="line 1 is damaged"):
        kept.events()


@pytest.mark.parametrize("event", [{"event": "answers"}, {"event": "answers", "arm": [], "chunk": 0, "repeat": 0, "retries": {},
                                                          "answers": []}, {"event": "void"}, {"event": "lost", "reason": None}])
def test_an_event_that_lacks_a_field_is_named_by_its_line(event: dict[str, Any]) -> None:
    with pytest.raises(RunDirectoryError, match="answers.jsonl: line 2 is damaged"):
        parse_journal(json.dumps(FINISHED).encode() + b"\n" + json.dumps(event).encode() + b"\n", "answers.jsonl")


@pytest.mark.parametrize("change", [{"run_id": ""}, {"environment": {"arch": "cpu", "packages": 5}}, {"environment": []},
                                    {"environment": {"arch": "cpu", "packages": {"torch": []}}}, {"started": 5}])
def test_a_damaged_manifest(tmp_path: Path, change: dict[str, Any]) -> None:
    kept = Record.create(tmp_path / "run", OPTIONS, {"arch": "cpu"})
    assert parse_manifest(json.dumps(kept.manifest), "run") == kept.manifest
    with pytest.raises(RunDirectoryError, match="run: manifest.json is none of a spot check, damaged"):
        parse_manifest(json.dumps(dict(kept.manifest) | change), "run")


def test_responses_are_compared_without_their_text() -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    whole = Response.of(" ".join(words))
    assert Response.from_data(whole.to_data()) == whole
    for place in range(7):
        other = Response.of(" ".join([*words[:place], "x", *words[place + 1:]]))
        assert whole.first_difference(other) == place
    assert whole.first_difference(Response.of("one two")) == 2
    assert Response.of("a b").first_difference(Response.of("ab")) == 0  # words are kept apart
    long = [f"w{number}" for number in range(40)]
    one, other = Response.of(" ".join(long), 16), Response.of(" ".join([*long[:20], "x", *long[21:]]), 16)
    assert one.first_difference(other) == 16 and len(one.chain) == 3
