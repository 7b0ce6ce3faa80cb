"""Quarantine of single tactics: offered before all speed is given up, judged over the rest, never on without the blocklist."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from gate_entries import PROBLEM, TODAY, entry, evidence, toml
from gate_runs import ENVIRONMENT, case, finding, scenario, scenarios, write

from moeguard.core.cell import Cell
from moeguard.core.errors import MoeguardError
from moeguard.core.events import Swept
from moeguard.gate.allowlist import Allowlist
from moeguard.gate.blocklist import VARIABLE, Blocklist
from moeguard.gate.evidence import read
from moeguard.gate.judgement import Judgement, judge
from moeguard.gate.markdown import markdown
from moeguard.gate.policy import Policy
from moeguard.gate.pool import Pool
from moeguard.gate.quarantine import offer
from moeguard.gate.summary import Summary
from moeguard.gate.update import Change, update

BACKEND, BAD, GOOD = "flashinfer_cutlass", "(3, -1)", "(-1, 50)"
CELL = Cell.of(BACKEND, "bf16", ENVIRONMENT)
POLICY = Policy.load()
EXPIRES = date(2026, 12, 31)


def summary(**changes: Any) -> Summary:
    """Evidence in which BAD has a finding, and the default and GOOD are right."""
    tactics = {BAD: 300, GOOD: 300, "default": 300}
    return Summary.model_validate(evidence(**{"tactics": tactics, "tactics_covered": [GOOD, "default"],
                                              "open_findings": [PROBLEM | {"tactic": BAD}]} | changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """510 clean cases, and one in which BAD is wrong; a timed sweep in which BAD is the fastest tactic."""
    options: dict[str, Any] = {"backend": BACKEND, "tactics": (BAD, GOOD)}
    wrong = finding(tactic=BAD, backend=BACKEND, of=case(seed=510))
    swept = [Swept(scenario=511, tactic=tactic, outcome="ok", seconds=seconds, runs=3)
             for tactic, seconds in ((None, 4.0), (BAD, 1.0), (GOOD, 2.0))]
    events = [*scenarios(510, **options), *scenario(510, case(seed=510), findings=[wrong], **options),
              *scenario(511, case(seed=511), swept=swept, **options)]
    return write(tmp_path_factory.mktemp("quarantine") / "run", events)


def updated(run: Path, *quarantine: str, text: str | None = None) -> tuple[str, Change]:
    after, (change,) = update(text, "list.toml", Pool.of([read(run)]).cells, POLICY, TODAY, EXPIRES, None, quarantine)
    return after, change


def judged(text: str, run: Path, **options: Any) -> Judgement:
    return judge(Allowlist.parse(text, "list.toml"), Pool.of([read(run)]), "O2", POLICY, TODAY, **options)


# The offer

def test_it_is_offered_with_the_commands_before_off() -> None:
    found = offer(CELL, summary(), "my list.toml", ["a run"])
    options = "--allowlist 'my list.toml' --cell flashinfer_cutlass/bf16"
    assert found is not None and (found.tactics, found.right) == ((BAD,), 2)
    assert found.commands == (
        f"moeguard allow export --format flashinfer-blocklist {options} --all-shapes > blocklist.json",
        f"moeguard allow update {options} --quarantine '(3, -1)' --evidence 'a run'")
    assert "only (3, -1) is at fault, the default and 1 other tactics gave right answers" in found.sentence


@pytest.mark.parametrize("changes", [
    {"open_findings": []},
    {"open_findings": [PROBLEM | {"tactic": "default"}]},
    {"open_findings": [PROBLEM | {"tactic": BAD}, PROBLEM | {"tactic": "default"}]},
    {"open_findings": [PROBLEM | {"tactic": BAD}, PROBLEM | {"tactic": BAD, "kind": "tuning_range"}]},
    {"open_findings": [PROBLEM | {"tactic": "(3, 50)"}]},
    {"tactics_covered": ["default"]},
    {"tactics_covered": [GOOD]},
    {"tactics": {BAD: 3, "default": 300}, "tactics_covered": ["default"]},
])
def test_it_is_not_offered_when_more_is_wrong(changes: dict[str, Any]) -> None:
    assert offer(CELL, summary(**changes)) is None


def test_it_is_not_offered_where_nothing_can_be_blocked() -> None:
    assert offer(Cell.of("triton", "bf16", ENVIRONMENT), summary()) is None
    old = ENVIRONMENT | {"packages": {"torch": "2.13.0", "flashinfer-python": "0.6.14"}}
    assert offer(Cell.of(BACKEND, "bf16", old), summary()) is None


def test_a_pair_goes_with_its_bad_single() -> None:
    pair = PROBLEM | {"tactic": "(3, 50)", "kind": "autotune_mismatch"}
    found = offer(CELL, summary(open_findings=[PROBLEM | {"tactic": BAD}, pair]))
    assert found is not None and found.tactics == (BAD, "(3, 50)")


def test_the_gate_names_it_with_the_price_of_off(run: Path) -> None:
    text, change = updated(run)
    assert change.after == () and change.offer is not None
    found = judged(text, run, flip="on")
    (one,) = found.decisions
    assert found.exit_code == 1 and one.offer is not None and one.offer.commands[1].endswith(f"--evidence {run}")
    said = markdown(found)
    assert said.index("quarantine: before autotuning is switched off: only (3, -1) is at fault") < said.index("- open_findings:")
    assert "| stays off | open_findings | - | 4 times (4 to 4) |" in said and one.offer.commands[0] in said
    assert one.to_data()["quarantine_offer"]["tactics"] == [BAD]
    assert one.to_data()["price_of_off"]["speed_up"] == {"median": 4.0, "low": 4.0, "high": 4.0}


# A quarantined cell

def test_the_rest_is_judged_and_the_finding_stays_visible(run: Path) -> None:
    text, change = updated(run, BAD)
    assert (change.after, change.quarantined) == (("O1", "O2", "O3"), (BAD,)) and change.reason.endswith("quarantined: (3, -1)")
    (one,) = Allowlist.parse(text, "list.toml").entries
    seen = one.evidence
    assert one.quarantined == [BAD] and set(seen.tactics) == {GOOD, "default"}
    assert (seen.executions, seen.cases, seen.failures, seen.known_failures) == (1024, 511, 0, 1)
    assert [(problem.tactic, problem.shapes) for problem in seen.quarantined_findings] == [(BAD, ["T=5 H=64 I=32 E=8 K=2"])]
    assert seen.open_findings == [] and seen.speed_up is not None and seen.speed_up.median == 2.0
    assert seen.strata is not None and (seen.strata.total, seen.strata.failed) == (28, 0)
    found = judged(text, run)
    assert found.allowed and found.decisions[0].quarantined == (BAD,) and "- quarantined: (3, -1)" in markdown(found)


def test_an_update_keeps_it_and_a_person_lifts_it(run: Path) -> None:
    text, _ = updated(run, BAD)
    assert updated(run, text=text)[0] == text
    lifted = text.replace('quarantined = ["(3, -1)"]', "quarantined = []")
    assert judged(lifted, run).exit_code == 3
    (one,) = Allowlist.parse(lifted, "list.toml").entries
    assert [failed.name for failed in one.decide("O2", POLICY, TODAY).failed] == ["quarantine"]
    again, change = updated(run, text=lifted)
    assert change.after == () and judged(again, run).exit_code == 1


def test_one_that_is_written_by_hand_is_not_believed(run: Path) -> None:
    text, _ = updated(run)
    by_hand = text.replace('autotune = "off"', 'autotune = "on"').replace(
        "levels = []", 'levels = ["O2"]\nquarantined = ["(3, -1)"]')
    (one,) = Allowlist.parse(by_hand, "list.toml").entries
    assert "quarantine" in [failed.name for failed in one.decide("O2", POLICY, TODAY).failed]
    assert judged(by_hand, run).exit_code == 3


def test_an_entry_that_is_there_gets_the_field_within_its_own_table(run: Path) -> None:
    waiver = 'requirement = "repeats"\nowner = "o"\nreason = "r"\nreference = "x"\nexpires = 2026-07-01\n'
    text = f"# ours\n{updated(run)[0]}\n[[cell.waiver]]\n{waiver}"
    done, _ = updated(run, BAD, text=text)
    (one,) = Allowlist.parse(done, "list.toml").entries
    assert one.quarantined == [BAD] and len(one.waiver) == 1 and done.startswith("# ours\n")


@pytest.mark.parametrize(("tactic", "message"), [
    ("(9, -1)", r"--quarantine: '\(9, -1\)'; allowed: a tactic that the evidence has"),
    ("default", "--quarantine: the default tactic of flashinfer_cutlass cannot be blocked"),
])
def test_what_cannot_be_quarantined_is_refused(tactic: str, message: str, run: Path) -> None:
    with pytest.raises(MoeguardError, match=message):
        updated(run, tactic)


@pytest.mark.parametrize(("changes", "message"), [
    ({"quarantined": [BAD, BAD]}, "quarantined: named twice"),
    ({"quarantined": ["default"]}, "the default tactic of flashinfer_cutlass cannot be blocked"),
    ({"quarantined": ["(3, 50)"]}, "neither"),
    ({"quarantined": [""]}, "quarantined.0: string should have at least 1 character"),
    ({"quarantined": ["a"], "backend": "triton"}, "triton has no tactics blocklist"),
])
def test_a_wrong_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MoeguardError, match=message):
        Allowlist.parse(toml(entry(backend=BACKEND) | changes), "list")


# In force

@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Allowlist:
    monkeypatch.delenv(VARIABLE, raising=False)
    return Allowlist.parse(toml(entry(backend=BACKEND, quarantined=[BAD])), "list")


def decided(known: Allowlist) -> tuple[bool, str]:
    found = known.decide(BACKEND, "bf16", "O2", ENVIRONMENT, today=TODAY)
    return found.allowed, found.reason


@pytest.mark.parametrize(("blocklist", "reason"), [
    (None, f"off: (3, -1) must be kept from the tuner: {VARIABLE} is not set"),
    (Blocklist.of(["(4, -1)", "(-1, 3)"], "0.7.4"), "does not block (3, -1)"),
    (Blocklist.of([BAD], "0.7.2"), "FlashInfer skips"),
    (Blocklist.of([BAD], "0.7.4", gpu="NVIDIA H100"), "FlashInfer skips"),
    (Blocklist.of([BAD], "0.7.4", "12.9", "NVIDIA H200"), "300 cases on an H200"),
    (Blocklist(None, frozenset({3}), frozenset()), "300 cases on an H200"),
])
def test_it_is_on_only_where_the_blocklist_is_in_force(blocklist: Blocklist | None, reason: str, known: Allowlist, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    if blocklist is not None:
        (tmp_path / "blocklist.json").write_text(json.dumps(blocklist.to_data()))
        monkeypatch.setenv(VARIABLE, str(tmp_path / "blocklist.json"))
    allowed, why = decided(known)
    assert reason in why and allowed == ("off" not in why)


def test_a_blocklist_that_cannot_be_read_is_off(known: Allowlist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none.json"))
    assert decided(known)[0] is False and "cannot read the tactics blocklist" in decided(known)[1]
