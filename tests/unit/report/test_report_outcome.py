"""The outcome: verdict, exit code, findings, cells, and the JSON object of ``run``."""

from __future__ import annotations

import json
import random
import shlex
from dataclasses import replace
from itertools import groupby

import pytest
from report_events import case, finding, found, manifest, refused, rich, scenario

from moeguard.core.case import Case
from moeguard.core.errors import RunDirectoryError
from moeguard.core.events import Executed, Noted, RunFinished, ScenarioStarted, parse
from moeguard.core.tokens import token_bucket
from moeguard.report.markdown import render
from moeguard.report.outcome import fold

END = RunFinished(seconds=12.5)


def test_clean_run() -> None:
    outcome = fold(manifest(), [*scenario(0), *scenario(1), END])
    assert (outcome.verdict, outcome.exit_code) == ("clean", 0)
    assert (outcome.executions, outcome.cases, outcome.seconds) == (4, 2, 12.5)
    assert outcome.sentence == "No findings in 4 executions of 2 cases on 1 cell."


def test_nothing_executed_is_inconclusive() -> None:
    for events in ([], [END], [*refused(0), END]):
        outcome = fold(manifest(), events)
        assert (outcome.verdict, outcome.exit_code, outcome.executions) == ("inconclusive", 3, 0)


def test_refused_cases_are_not_counted_as_tested() -> None:
    both = [*scenario(0), *refused(1), *refused(2)]
    assert fold(manifest(), [*both, END]).sentence == "No findings in 2 executions of 1 case (2 more were refused) on 1 cell."
    assert fold(manifest(), [*both, END]).to_data("r")["cases"] == 3
    assert fold(manifest(), [*both[-3:], END]).sentence == (
        "Nothing was executed, so nothing was verified. 1 case was refused.")


def test_a_case_that_one_of_two_backends_refuses_was_tested() -> None:
    events = [replace(event, draw=0) if isinstance(event, ScenarioStarted) else event
              for event in [*scenario(0), *refused(1, backend="other")]]
    assert (fold(manifest(), events).cases, fold(manifest(), events).refused) == (1, 0)


def test_a_vacuous_tuning_is_inconclusive_known_or_not() -> None:
    for known in (False, True):
        vacuous = finding("vacuous_autotune", entry="an-entry" if known else None)
        outcome = fold(manifest(), [*scenario(0), *scenario(1, findings=[vacuous]), END])
        assert (outcome.verdict, outcome.exit_code) == ("inconclusive", 3)
        assert outcome.sentence.startswith("A tuning proved nothing, so what is tuned was not verified. 1 finding")
        assert [item["kind"] for item in outcome.to_data("r")["findings"]] == ["vacuous_autotune"]


def test_a_vacuous_tuning_hides_no_other_finding() -> None:
    both = [*scenario(0, findings=[finding("vacuous_autotune"), finding("mismatch")]), END]
    assert (fold(manifest(), both).verdict, fold(manifest(), both).exit_code) == ("findings", 1)
    known = [*scenario(0, findings=[finding("vacuous_autotune"), finding("mismatch", entry="an-entry")]), END]
    assert fold(manifest(), known).exit_code == 3
    assert fold(manifest(strict=True), known).exit_code == 1


def test_reasons_are_a_few_lines_with_recipes_together() -> None:
    notes = [Noted(scenario=-1, backend="b", recipe=recipe, what="case", reason="no GPU") for recipe in ("bf16", "fp16")]
    assert fold(manifest(), [*notes, END]).reasons() == ["b bf16, fp16: case: no GPU"]
    many = [Noted(scenario=-1, backend="b", recipe="", what=str(number), reason="r") for number in range(9)]
    assert fold(manifest(), [*many, END]).reasons() == [*(f"b: {number}: r" for number in range(4)), "and 5 more reasons"]
    asked = manifest(backends=["mine"], recipes=["bf16"])
    assert fold(asked, [END]).reasons() == ["mine bf16: no scenario was drawn for it"]


def test_finding_fails_the_run_even_without_an_execution() -> None:
    outcome = fold(manifest(), [*scenario(0, checks=(), findings=[finding("hang")], status="hang"), END])
    assert (outcome.verdict, outcome.exit_code, outcome.executions) == ("findings", 1, 0)
    assert outcome.sentence == "1 finding: no call got as far as a verdict, so nothing else was verified."


def test_known_findings_fail_only_a_strict_run() -> None:
    events = [*scenario(0, findings=[finding(entry="an-entry")]), END]
    assert fold(manifest(), events).exit_code == 0
    assert fold(manifest(strict=True), events).exit_code == 1
    assert fold(manifest(), [*events, found(0, finding())]).exit_code == 1


def test_interrupted_then_resumed() -> None:
    stopped = [*scenario(0), RunFinished(seconds=3.0, interrupted=True)]
    assert (fold(manifest(), stopped).exit_code, fold(manifest(), stopped).interrupted) == (130, True)
    resumed = fold(manifest(), [*stopped, *scenario(1), RunFinished(seconds=5.0)])
    assert (resumed.exit_code, resumed.seconds, resumed.executions) == (0, 5.0, 4)


def test_interrupted_outranks_findings() -> None:
    events = [*scenario(0, findings=[finding()]), RunFinished(seconds=3.0, interrupted=True)]
    assert fold(manifest(), events).exit_code == 130


def test_a_scenario_begun_again_counts_once() -> None:
    """A kill inside a scenario leaves a part of it in the journal; the resume runs it again from its start."""
    whole = scenario(0, findings=[finding()])
    resumed = fold(manifest(), [*whole[:2], *whole, END])
    assert resumed == fold(manifest(), [*whole, END])
    assert (resumed.executions, resumed.cases, resumed.hits) == (2, 1, {finding().fingerprint: 1})


def test_a_killed_run_says_so() -> None:
    outcome = fold(manifest(), scenario(0)[:-1])
    assert not outcome.complete
    assert "did not come to its end" in outcome.sentence
    assert outcome.seconds == 0.5


def test_order_of_scenarios_does_not_matter() -> None:
    events = rich(120)
    groups = [list(group) for _, group in groupby(events[:-1], key=lambda event: event.scenario)]  # type: ignore[attr-defined]
    random.Random(3).shuffle(groups)
    shuffled = [event for group in groups for event in group]
    mine, other = fold(manifest(), events), fold(manifest(), [*shuffled, events[-1]])
    assert json.dumps(mine.to_data("r")) == json.dumps(other.to_data("r"))
    assert mine == other


def test_journal_round_trip() -> None:
    events = rich(60)
    assert fold(manifest(), [parse(event.to_json()) for event in events]) == fold(manifest(), events)


def test_shrunk_form_is_shown_and_hits_are_counted() -> None:
    big, small, later = (case(tokens=tokens, seed=tokens) for tokens in (100, 3, 50))
    events = [*scenario(4, of=later, findings=[finding(of=later)]), *scenario(1, of=big, findings=[finding(of=big)]),
              found(4, finding(of=small), shrunk=True), END]
    outcome = fold(manifest(), events)
    assert [one.case for one in outcome.findings] == [small]
    assert outcome.hits == {outcome.findings[0].fingerprint: 2}


def test_smallest_scenario_is_shown_when_nothing_was_shrunk() -> None:
    events = [*scenario(9, findings=[finding(of=case(seed=9))]), *scenario(2, findings=[finding(of=case(seed=2))]), END]
    assert fold(manifest(), events).findings[0].case.seed == 2


@pytest.mark.parametrize(("tries", "merged"), [
    ([False, None], False), ([None, False], False), ([None, None], None), ([None, True], True), ([False, True], False),
])
def test_reproduced_is_not_lost(tries: list[bool | None], merged: bool | None) -> None:
    events = [event for number, tried in enumerate(tries)
              for event in scenario(number, findings=[finding(reproduced=tried)])]
    assert fold(manifest(), events).findings[0].reproduced is merged


def test_json_object_of_run() -> None:
    value = finding("bad_tactic", tactic="(3, 7)", check="tactics", numbers={"max_z": float("inf")})
    data = fold(manifest(plugins=["my plugin.py"]), [*scenario(0, findings=[value]), END]).to_data("reports/x")
    assert list(data) == ["verdict", "run_dir", "executions", "cases", "seconds", "findings", "cells", "not_verified"]
    [item] = data["findings"]
    assert list(item) == ["kind", "fingerprint", "backend", "recipe", "tactic", "case", "sentence", "replay",
                          "reproduced", "known"]
    assert Case.from_json(json.dumps(item["case"])) == value.case
    assert shlex.split(item["replay"]) == [
        "moeguard", "replay", f"reports/x/cases/{value.case.fingerprint}.json", "--backend", "mine",
        "--tactic", "(3, 7)", "--plugin", "my plugin.py"]
    json.dumps(data, allow_nan=False)


def test_replay_of_a_negative_tactic() -> None:
    value = finding(tactic="-1")
    assert fold(manifest(), []).replay(value, "r").endswith("--backend mine --tactic=-1")


def test_cell_evidence() -> None:
    bad = finding(of=case(tokens=5), tactic="-1")
    events = [*scenario(0, of=case(tokens=5), tactic="-1", findings=[bad]), *scenario(1, of=case(tokens=0)),
              *refused(2), *scenario(3, checks=("routing",), outcome="refused"), END]
    [cell] = fold(manifest(), events).cells
    assert cell | {"checks": None} == {
        "backend": "mine", "recipe": "bf16", "arch": "sm90", "flashinfer": "0.4.1", "cuda": "12.9", "driver": "575.57",
        "torch": "2.8.0", "executions": 5, "cases": 4, "refused": 1, "failures": 1, "findings": [bad.fingerprint],
        "outcomes": {"finding": 1, "ok": 3, "refused": 1}, "checks": None, "tactics": {"-1": 2, "default": 3},
        "token_buckets": {"0": 2, "4": 3}, "tuned": {}, "status": "executed", "reason": None}
    assert cell["checks"] == {
        "accuracy": {"executions": 2, "findings": 1, "seconds": 0.5},
        "memory": {"executions": 2, "findings": 0, "seconds": 0.5},
        "routing": {"executions": 1, "findings": 0, "seconds": 0.25}}


def test_cells_that_were_asked_for_but_executed_nothing() -> None:
    note = Noted(scenario=-1, backend="triton", recipe="bf16", what="backend", reason="no GPU")
    asked = manifest(backends=["mine", "triton"], recipes=["bf16", "fp16"])
    events = [note, *scenario(0), *refused(1, of=case("fp16")), END]
    cells = {(cell["backend"], cell["recipe"]): (cell["status"], cell["reason"]) for cell in fold(asked, events).cells}
    assert cells == {("mine", "bf16"): ("executed", None), ("mine", "fp16"): ("refused", "needs sm100"),
                     ("triton", "bf16"): ("refused", "no GPU"),
                     ("triton", "fp16"): ("empty", "no scenario was drawn for it")}


def test_not_verified_is_counted_once_for_each_reason() -> None:
    outcome = fold(manifest(), [*refused(3), *refused(1), *refused(2, reason="another"), END])
    assert outcome.not_verified == (
        {"backend": "mine", "recipe": "bf16", "what": "case", "reason": "another", "count": 1},
        {"backend": "mine", "recipe": "bf16", "what": "case", "reason": "needs sm100", "count": 2})


def test_findings_that_fail_the_run_come_first() -> None:
    values = [finding("unwritten_output", check="memory", entry="an-entry"), finding("hang", check="watchdog"),
              finding("non_finite")]
    outcome = fold(manifest(), [*scenario(0, findings=values), END])
    assert [one.kind for one in outcome.findings] == ["non_finite", "hang", "unwritten_output"]


@pytest.mark.parametrize(("tokens", "bucket"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 4), (257, 256), (8192, 8192)])
def test_token_bucket(tokens: int, bucket: int) -> None:
    assert token_bucket(tokens) == bucket


def test_damaged_journal_is_refused_with_a_sentence() -> None:
    stray = Executed(scenario=5, number=0, check="memory", role="base", tactic=None, outcome="ok", seconds=0.1)
    with pytest.raises(RunDirectoryError, match="scenario 5"):
        fold(manifest(), [stray])
    broken = found(0, finding())
    broken.finding["kind"] = "surprise"
    with pytest.raises(RunDirectoryError, match="kind"):
        fold(manifest(), [broken])


def test_what_autotuning_chose_is_told_by_bucket() -> None:
    chosen = [Executed(scenario=0, number=place, check="tuned", role=role, tactic=tactic, outcome="ok", seconds=0.1, numbers={})
              for place, (role, tactic) in enumerate((("tuned", "(44, 81)"), ("default after tuning", None), ("tuned", "(3, 50)"),
                                                      ("tuned", "(44, 81)")))]
    start, *_, end = scenario(0, of=case(tokens=300))
    outcome = fold(manifest(), [start, *chosen, end, END])
    (cell,) = [cell for cell in outcome.cells if cell["executions"]]
    assert cell["tuned"] == {"256": {"(3, 50)": 1, "(44, 81)": 2}}
    assert "(44, 81) 2 times, (3, 50)" in render(outcome, "run")
