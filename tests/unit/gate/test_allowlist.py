"""The allowlist fails closed: each condition that is not met means off, and is named."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from commandline import ROOT
from gate_entries import PROBLEM, RUN, TODAY, entry, evidence, toml
from gate_runs import ENVIRONMENT

import moeguard as mg
from moeguard.core.errors import MoeguardError
from moeguard.gate.allowlist import Allowlist

WAIVER = {"requirement": "repeats", "owner": "someone", "reason": "slow", "reference": "doc 7", "expires": date(2026, 7, 1)}


def parse(*entries: dict[str, Any]) -> Allowlist:
    return Allowlist.parse(toml(*entries), "list")


def decide(one: dict[str, Any], level: str = "O2", environment: dict[str, Any] | None = None, today: date = TODAY) -> mg.Decision:
    return parse(one).decide("mine", "bf16", level, environment or ENVIRONMENT, today=today)


def names(decision: mg.Decision) -> list[str]:
    return [one.name for one in decision.failed]


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_enough_evidence_is_on(level: str) -> None:
    found = decide(entry(), level)
    assert (found.allowed, found.outcome, found.failed, found.reason) == (True, "on", (), "300 cases on an H200")


def test_the_json_form() -> None:
    data = decide(entry(expires=date(2026, 1, 1))).to_data()
    assert data["cell"] == {"backend": "mine", "recipe": "bf16", "arch": "sm90", "flashinfer": "0.7.4", "cuda": "12.9",
                            "driver": "575.57", "torch": "2.13.0", "level": "O2"}
    assert (data["decision"], data["autotune"], data["backend_use"]) == ("off", "off", "ok")
    assert [one["name"] for one in data["failed_requirements"]] == ["expires"]
    assert data["reason"] == "off: the entry expired on 2026-01-01"


def test_an_unknown_cell_is_off() -> None:
    for backend, recipe in (("other", "bf16"), ("mine", "fp16")):
        assert names(parse(entry()).decide(backend, recipe, "O2", ENVIRONMENT, today=TODAY)) == ["listed"]
    assert names(parse().decide("mine", "bf16", "O2", ENVIRONMENT, today=TODAY)) == ["listed"]


@pytest.mark.parametrize(("changes", "named"), [
    ({"arch": "sm100"}, "arch"), ({"driver": "1"}, "driver"), ({"cuda": None}, "cuda none"),
    ({"packages": {"torch": "2.13.1", "flashinfer-python": "0.7.4"}}, "torch 2.13.1"),
    ({"packages": {"torch": "2.13.0"}}, "flashinfer none")])
def test_a_changed_version_is_off(changes: dict[str, Any], named: str) -> None:
    found = decide(entry(), environment={**ENVIRONMENT, **changes})
    assert names(found) == ["versions"] and named in found.reason
    assert found.failed[0].sentence.count(" 0.7.4") == ("flashinfer" in named)


def test_the_last_day_counts() -> None:
    assert decide(entry(expires=TODAY)).allowed
    assert names(decide(entry(expires=TODAY - timedelta(days=1)))) == ["expires"]


def test_off_is_off() -> None:
    assert names(decide(entry(autotune="off", levels=[]))) == ["autotune"]
    found = decide(entry(autotune="off", levels=[], backend_use="avoid"))
    assert (names(found), found.outcome, found.backend_use) == (["backend_use", "autotune"], "avoid", "avoid")


def test_a_level_that_is_not_named_is_off() -> None:
    assert names(decide(entry(levels=["O1"]))) == ["level"]
    assert "level" in names(decide(entry(), "O0"))


def test_an_unknown_level_is_bad_input() -> None:
    with pytest.raises(MoeguardError, match="--level: unknown value 'O4'; allowed: O0, O1, O2, O3"):
        decide(entry(), "O4")


def test_recorded_evidence_is_judged_again() -> None:
    found = decide(entry(evidence=evidence(open_findings=[PROBLEM])))
    assert names(found) == ["open_findings"] and "bad_tactic of tactic b" in found.reason


def test_a_waiver_covers_its_requirement_until_it_expires() -> None:
    one = entry(evidence=evidence(repeats=1, tactics={"a": 1, "b": 300, "default": 300}), waiver=[WAIVER])
    assert decide(one).allowed and [waiver.owner for waiver in decide(one).waived] == ["someone"]
    assert decide(one, today=WAIVER["expires"]).allowed  # type: ignore[arg-type]
    assert names(decide(one, today=date(2026, 7, 2))) == ["repeats"]
    assert names(decide(one | {"evidence": evidence(executions=1)})) == ["executions"]


def test_the_waiver_of_the_documentation() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "gate.md").read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "[[cell.waiver]]" in block)
    (one,) = Allowlist.parse(f"{toml(entry())}\n{block}", "list").entries
    assert [waiver.requirement for waiver in one.waiver] == ["repeats"]


def test_a_waiver_that_has_expired_is_named() -> None:
    found = decide(entry(evidence=evidence(repeats=1, tactics={"a": 1, "b": 300, "default": 300}), waiver=[WAIVER]),
                   today=date(2026, 7, 2))
    assert found.reason.endswith("of tactics a (the waiver of someone expired on 2026-07-01)")


def test_a_waiver_is_whole_in_the_json_form() -> None:
    one = entry(evidence=evidence(repeats=1, tactics={"a": 1, "b": 300, "default": 300}), waiver=[WAIVER])
    assert decide(one).to_data()["waived"] == [{**WAIVER, "expires": "2026-07-01"}]


def test_another_or_an_unknown_gpu_is_off() -> None:
    for gpu, named in (("NVIDIA H100", "this is NVIDIA H100"), (None, "this is none")):
        found = decide(entry(), environment={**ENVIRONMENT, "gpu": gpu})
        assert names(found) == ["gpu"] and found.reason == f"off: the evidence was made on the GPU NVIDIA H200, {named}"


def test_a_clock_in_the_past_is_off() -> None:
    found = decide(entry(), today=date(2026, 4, 30))
    assert names(found) == ["clock"] and "the clock says 2026-04-30, but evidence was made on 2026-05-01" in found.reason
    assert decide(entry(), today=date(2026, 5, 1)).allowed


def test_o3_alone_is_an_inconsistency() -> None:
    slow = evidence(open_findings=[PROBLEM | {"kind": "perf_regression"}])
    assert names(decide(entry(levels=["O3"], evidence=slow), "O3")) == ["consistent_levels"]
    assert names(decide(entry(evidence=slow), "O2")) == ["open_findings"]
    assert decide(entry(levels=["O3"], evidence=evidence(executions=400)), "O3").allowed


def test_the_environment_is_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "moeguard-allowlist.toml"
    file.write_text(toml(entry()))
    found = mg.Allowlist.load(file).decide("mine", "bf16", "O2")
    assert not found.allowed and found.failed[0].name == "versions"


@pytest.mark.parametrize(("changes", "message"), [
    ({"autotune": "maybe"}, "list: cell 1: autotune: input should be 'on' or 'off'"),
    ({"backend_use": "never"}, "backend_use: input should be 'ok' or 'avoid'"),
    ({"levels": ["O2", "O2"]}, "named twice"),
    ({"levels": ["O0"]}, "O0 is never tuned"),
    ({"levels": []}, "at least one with autotune"),
    ({"levels": ["O4"]}, "levels.0: input should be 'O0', 'O1', 'O2' or 'O3'"),
    ({"backend_use": "avoid"}, "for a backend to avoid"),
    ({"expires": "soon"}, "expires: input should be a valid date"),
    ({"expires": datetime(2026, 12, 31, 1)}, "expires: datetimes provided to dates|expires: input should be a valid date"),
    ({"flashinfer": 7}, "flashinfer: input should be a valid string"),
    ({"reason": ""}, "reason: string should have at least 1 character"),
    ({"colour": "red"}, "colour: unknown field; allowed: backend, recipe, arch"),
    ({"waiver": [WAIVER | {"requirement": "open_findings"}]}, "requirement: 'open_findings'; allowed: executions, bound"),
    ({"waiver": [WAIVER | {"owner": ""}]}, "waiver.0.owner"),
    ({"evidence": evidence(runs=[])}, "evidence.runs"),
    ({"evidence": evidence(runs=[RUN | {"sha256": "0" * 63}])}, "evidence.runs.0.sha256"),
    ({"evidence": evidence() | {"failures": 301}}, "at most cases"),
    ({"evidence": evidence() | {"bound": 0.001}}, "bound: 0.001; allowed: 0.00993"),
])
def test_a_wrong_field_is_named_with_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MoeguardError, match=message) as error:
        parse(entry(**changes))
    assert "\n" not in str(error.value) and error.value.exit_code == 2


@pytest.mark.parametrize(("text", "message"), [
    ("", "schema: None; allowed: 1"), ("schema = 2", "schema: 2; allowed: 1"), ("schema = true", "schema: True"),
    ("schema = 1\ncell = 3", "tables"), ("schema = 1\nrow = 1", "row: unknown field; allowed: schema, cell"),
    ("schema =", "not valid TOML"), (toml(entry(), entry(reason="again")), "cell 2: the cell is there twice"),
])
def test_a_malformed_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(MoeguardError, match=message):
        Allowlist.parse(text, "list")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MoeguardError, match="cannot read the allowlist"):
        mg.Allowlist.load(tmp_path / "none.toml")
    with pytest.raises(MoeguardError, match="cannot read the allowlist"):
        mg.Allowlist.load(tmp_path)
