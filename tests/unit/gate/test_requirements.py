"""Each requirement of the policy, failing alone; and the policy file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gate_entries import BUCKETS, PROBLEM, STRATA, TODAY, entry, evidence, toml
from gate_runs import ENVIRONMENT

from moeguard.core.cell import Cell
from moeguard.core.errors import MoeguardError
from moeguard.core.finding import KINDS
from moeguard.gate.allowlist import Allowlist
from moeguard.gate.policy import TOLERABLE, WRONG_ANSWERS, Policy
from moeguard.gate.price import Price
from moeguard.gate.requirement import RULES, failures
from moeguard.gate.summary import Summary

CELL = Cell.of("mine", "bf16", ENVIRONMENT)
#: The packaged policy, which besides asks that tuning is not slower, and for cases in each stratum.
FAST = Policy("here", {level: one.model_copy(update={"min_speed_up": 1.0, "max_stratum_bound": 0.5})
                       for level, one in Policy.load().levels.items()}, {})
RACE = PROBLEM | {"kind": "nondeterministic", "tactic": "default", "reruns": 3}
CHECK = {"run_id": "check-1", "started": TODAY, "sha256": "1" * 64, "task": "gsm8k", "outcome": "not_worse", "questions": 1319,
         "repeats": 1, "losses": 20, "gains": 18, "margin": 0.02, "drop": 0.0015, "upper_bound": 0.0095}
#: What must be waived for one to fail alone: a race that is known is a wrong answer too.
BESIDE = {"reruns": "known_findings"}
ALONE: dict[str, tuple[dict[str, Any], str]] = {
    "open_findings": ({"open_findings": [PROBLEM]}, "bad_tactic of tactic b"),
    "known_findings": ({"known_findings": [PROBLEM]}, "known wrong answers: bad_tactic of tactic b"),
    "tactics": ({"tactics_covered": ["a", "default"]}, "no right answer from tactics b"),
    "token_buckets": ({"token_buckets": BUCKETS[:-1]}, "no case in the buckets of 4096 tokens"),
    "bound": ({"cases": 298}, "298 distinct cases"),
    "executions": ({"executions": 999}, "999 executions, 1000 are needed"),
    "speed_up": ({"speed_up": {"median": 0.9, "low": 0.8, "high": 1.2}}, "0.9 times as fast as the default, 1 is needed"),
    "strata": ({"strata": STRATA | {"worst": STRATA["worst"] | {"cases": 4, "bound": 0.527129}}},  # type: ignore[dict-item]
               "tactic b at T >= 4096: 0 failures in 4 cases leave a failure rate of up to 0.527"),
    "evals": ({"evals": [CHECK | {"outcome": "worse", "upper_bound": 0.08}]}, "a spot check found harm: gsm8k worse"),
    "tuning": ({"known_findings": [PROBLEM | {"kind": "vacuous_autotune"}]}, "a tuning measured nothing"),
    "reruns": ({"known_findings": [RACE]}, "nondeterministic of tactic default needs 59 executions of one and the same case, 3"),
    "repeats": ({"repeats": 4, "tactics": {"a": 4, "b": 9, "default": 9}}, "fewer than 5 judged calls of tactics a"),
}


def failed(changes: dict[str, Any], level: str = "O2", policy: Policy | None = None) -> dict[str, Any]:
    found = failures(CELL, Summary.model_validate(evidence(**changes)), level, policy or Policy.load())
    return {one.name: one for one in found}


def test_every_requirement_is_tested() -> None:
    assert set(ALONE) == set(RULES)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_full_evidence_meets_all(level: str) -> None:
    assert failed({}, level) == {}


@pytest.mark.parametrize("name", ALONE)
def test_it_fails_alone(name: str) -> None:
    changes, words = ALONE[name]
    found = failed({"speed_up": {"median": 1.5, "low": 1.0, "high": 2.0}} | changes, policy=FAST)
    assert [other for other in found if other != BESIDE.get(name)] == [name]
    one = found[name]
    assert words in one.sentence and one.threshold and one.actual and one.command.startswith("moeguard ")


def test_a_race_needs_repeats_of_one_case_and_not_just_cases() -> None:
    waiver = {"requirement": "known_findings", "owner": "o", "reason": "r", "reference": "x", "expires": TODAY}
    for reruns, names in ((58, ["reruns"]), (59, [])):
        seen = evidence(known_findings=[RACE | {"reruns": reruns}], executions=10**6, cases=10**4)
        (one,) = Allowlist.parse(toml(entry(evidence=seen, waiver=[waiver])), "list").entries
        assert [failed.name for failed in one.decide("O2", Policy.load(), TODAY).failed] == names
    assert {"reruns", "open_findings"} <= set(failed({"open_findings": [RACE | {"kind": "stale_state"}]}))
    assert failed({"open_findings": [RACE]})["reruns"].command.endswith(" --repeat 59")


@pytest.mark.parametrize("offered", [True, False])
def test_the_default_tactic_alone_proves_nothing_about_autotuning(offered: bool) -> None:
    found = failed({"tactics": {"default": 5000}, "tactics_covered": ["default"], "repeats": 5000, "tactics_known": offered})
    assert list(found) == ["tactics"]
    assert "only the default tactic was executed, which proves nothing about autotuning" in found["tactics"].sentence


def test_pairs_that_the_tuner_made_of_known_tactics_need_no_repeats() -> None:
    tactics = {"(3, -1)": 9, "(-1, 50)": 9, "(3, 50)": 1, "default": 9}
    assert failed({"tactics": tactics, "tactics_covered": list(tactics), "repeats": 9}) == {}
    few = failed({"tactics": tactics | {"(4, 50)": 1}, "tactics_covered": [*tactics, "(4, 50)"], "repeats": 1})
    assert few["repeats"].sentence.endswith("tactics (4, 50)")


def test_tactics_that_may_exist_are_missing_tactics() -> None:
    assert "a sweep does" in failed({"tactics_known": False})["tactics"].sentence
    assert set(failed({"tactics": {}, "tactics_covered": []})) == {"tactics"}


def test_no_case_at_all_fails_the_bound() -> None:
    assert "bound" in failed({"cases": 0})


def test_one_failure_in_few_cases_fails_the_bound() -> None:
    assert set(failed({"failures": 1})) == {"bound"}


def test_speed_is_asked_for_only_by_a_policy() -> None:
    assert failed({}) == {}
    assert "no sweep was timed" in failed({}, policy=FAST)["speed_up"].sentence


@pytest.mark.parametrize(("changes", "sentence", "measures"), [
    ({"speed_up": {"median": 3.14159, "low": 2.7, "high": 5.3}},
     "off costs speed: the fastest right tactic is 3.14 times as fast as the default (2.7 to 5.3 over layers and token counts)",
     False),
    ({}, "what off costs is not measured", True),
    ({"tactics": {"default": 9}}, "off costs nothing: the backend offers no tactic beside its default", False),
    ({"tactics": {"default": 9}, "tactics_known": False}, "what off costs is not measured", True),
])
def test_the_price_of_off(changes: dict[str, Any], sentence: str, measures: bool) -> None:
    found = Price.of(CELL, Summary.model_validate(evidence(**changes)))
    assert (found.sentence, found.command) == (
        sentence, "moeguard sweep --backend mine --recipe bf16 --device cuda" if measures else None)
    assert Price.of(CELL, None).command is not None


@pytest.mark.parametrize(("checks", "sentence"), [
    ([], "no spot check of gsm8k; a drop of 1 points or more must be excluded"),
    ([CHECK | {"task": "gpqa"}], "no spot check of gsm8k"),
    ([CHECK | {"upper_bound": 0.0101}], "gsm8k not worse: drop 0.15 points, at most 1.01"),
    ([CHECK | {"outcome": "cannot_tell"}], "gsm8k cannot tell"),
    ([CHECK, CHECK | {"task": "gpqa", "outcome": "worse"}], "found harm: gpqa worse"),
    ([CHECK], None),
])
def test_spot_checks_are_asked_for_by_a_policy(checks: list[dict[str, Any]], sentence: str | None) -> None:
    asked = Policy("here", {"O2": Policy.load().levels["O2"].model_copy(update={"evals": {"gsm8k": 0.01}})}, {})
    found = failed({"evals": checks}, policy=asked)
    assert set(found) == ({"evals"} if sentence else set())
    assert sentence is None or sentence in found["evals"].sentence
    assert failed({"evals": [one for one in checks if one["outcome"] != "worse"]}) == {}


def test_a_spot_check_is_no_sweep() -> None:
    assert {"executions", "bound"} <= set(failed({"evals": [CHECK], "executions": 1, "cases": 0}))


def test_o0_is_never_tuned() -> None:
    assert list(failed({}, "O0")) == ["level"]


def test_o3_asks_for_less_but_tolerates_no_wrong_answer() -> None:
    assert failed({"executions": 400, "cases": 120, "repeats": 3}, "O3") == {}
    for kind in KINDS:
        found = failed({"open_findings": [PROBLEM | {"kind": kind}]}, "O3")
        assert ("open_findings" in found) == (kind != "perf_regression"), kind
    assert not WRONG_ANSWERS & set(TOLERABLE)


def test_known_findings_that_are_not_about_answers_do_not_count() -> None:
    assert failed({"known_findings": [PROBLEM | {"kind": "routing_contract"}]}) == {}


def test_a_cpu_has_thresholds_of_its_own() -> None:
    policy = Policy.load()
    assert policy.thresholds("O2", "cpu").max_bound > policy.thresholds("O2", "sm90").max_bound
    assert policy.thresholds("O0", "cpu").never


def test_the_commands_name_the_cell() -> None:
    command = failed({"executions": 1})["executions"].command
    assert command == "moeguard run --backend mine --recipe bf16 --device cuda --profile ci --max-cases 448"
    assert failed({"token_buckets": BUCKETS[:-1]})["token_buckets"].command.endswith("--tokens 4096")


PACKAGED = (Path(sys.modules[Policy.__module__].__file__ or "").with_name("policy.toml")).read_text()


@pytest.mark.parametrize(("old", "new", "message"), [
    ("schema = 1", "schema = 9", "schema: 9; allowed: 1"),
    ("[level.O0]\nnever = true", "", "level.O0: missing"),
    ("[level.O0]\nnever = true", "[level.O0]\nnever = false", "O0 is never tuned"),
    ("max_bound = 0.01", "max_bound = 1.5", "max_bound: input should be less than 1"),
    ("min_repeats = 3", "min_repeats = 0", "min_repeats: input should be greater than or equal to 1"),
    ('["perf_regression"]', '["mismatch"]', "tolerated: 'mismatch'; allowed: perf_regression, tuning_range"),
    ("[arch.cpu.O2]", "[arch.cpu.O7]", "unknown level; allowed: O0"),
    ("[arch.cpu.O2]", '[arch.cpu.O2]\ntolerated = ["perf_regression"]', "allowed for O3 alone"),
    ("[arch.cpu.O2]", "[arch.cpu.O2]\nspeed = 1", "speed: unknown field; allowed: never, min_executions"),
])
def test_a_wrong_policy_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in PACKAGED
    file = tmp_path / "policy.toml"
    file.write_text(PACKAGED.replace(old, new, 1))
    with pytest.raises(MoeguardError, match=message):
        Policy.load(file)


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(PACKAGED.replace("min_executions = 1000", "min_executions = 5000"))
    assert list(failed({}, policy=Policy.load(file))) == ["executions"]


def test_deciding_needs_no_torch() -> None:
    code = "import sys, moeguard as mg; mg.Allowlist, mg.Decision; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
