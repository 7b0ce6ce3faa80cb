"""What a run directory proves, and when it proves nothing."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gate_runs import ENVIRONMENT, case, finding, scenario, scenarios, write

from moeguard.core.cell import Cell
from moeguard.core.events import Event, Executed, Found, Noted, RunFinished, ScenarioStarted, Swept
from moeguard.gate import tally as tallies
from moeguard.gate.evidence import RunEvidence, read
from moeguard.gate.pool import Pool
from moeguard.gate.snapshot import Snapshot, Stale, digest, take
from moeguard.gate.summary import RunId, Summary

CELL = Cell("mine", "bf16", "sm90", "0.7.4", "12.9", "575.57", "2.13.0")


def summary(folder: Path, cell: Cell = CELL) -> Summary:
    evidence = read(folder)
    assert isinstance(evidence, RunEvidence), evidence
    return Summary.of([RunId(run_id=evidence.run_id, started=evidence.started, sha256=evidence.sha256)], evidence.cells[cell])


def stale(folder: Path) -> str:
    evidence = read(folder)
    assert isinstance(evidence, Stale)
    return evidence.reason


def test_the_digest_is_what_is_documented(tmp_path: Path) -> None:
    run = write(tmp_path / "run", scenario(0, findings=[finding()]))
    total = hashlib.sha256()
    names = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    for name in names:
        data = (run / name).read_bytes()
        total.update(name.encode() + b"\0" + str(len(data)).encode() + b"\0" + data)
    snapshot = take(run)
    assert isinstance(snapshot, Snapshot) and len(names) == 3
    assert snapshot.sha256 == total.hexdigest() == digest(snapshot.files)


def test_the_digest_ignores_derived_files_and_the_place(tmp_path: Path) -> None:
    one = write(tmp_path / "one", scenario(0))
    two = shutil.copytree(one, tmp_path / "two")
    (two / "summary.md").write_text("derived")
    first, second = take(one), take(two)
    assert isinstance(first, Snapshot) and isinstance(second, Snapshot) and first.sha256 == second.sha256


def test_content_cannot_move_between_files() -> None:
    assert len({digest({"a": b"xy", "b": b""}), digest({"a": b"x", "b": b"y"}), digest({"ab": b"xy"}),
                digest({"a": b"xy"})}) == 4


def test_a_clean_run(tmp_path: Path) -> None:
    found = summary(write(tmp_path / "run", scenarios(59)))
    assert (found.executions, found.cases, found.failures, found.known_failures) == (177, 59, 0, 0)
    assert found.bound == pytest.approx(1 - 0.05 ** (1 / 59), abs=1e-6)
    assert found.tactics == {"a": 59, "b": 59, "default": 59} and found.tactics_known
    assert found.tactics_covered == ["a", "b", "default"]
    assert found.token_buckets == [0, *(1 << exponent for exponent in range(13))]
    assert (found.repeats, found.open_findings, found.known_findings, found.speed_up) == (59, [], [], None)


def test_strata_are_buckets_and_tactics(tmp_path: Path) -> None:
    wrong = finding(of=case(9, seed=1))
    found = summary(write(tmp_path / "run", [*scenario(0, case(8)), *scenario(1, case(9, seed=1), findings=[wrong]),
                                             *scenario(2, case(300), tactics=("a",))])).strata
    assert found is not None and (found.total, found.thin, found.failed) == (6, 6, 1)
    assert (found.worst.token_bucket, found.worst.tactic, found.worst.cases, found.worst.bound) == (256, "b", 0, 1.0)
    clean = summary(write(tmp_path / "clean", scenarios(140))).strata
    assert clean is not None and (clean.total, clean.thin, clean.failed) == (42, 0, 0)
    assert clean.worst.cases == 10 and clean.worst.bound == pytest.approx(1 - 0.05 ** (1 / 10), abs=1e-6)


def test_a_known_finding_leaves_its_stratum_alone(tmp_path: Path) -> None:
    known = finding(of=case(9, seed=1), entry="an-entry")
    found = summary(write(tmp_path / "run", [*scenario(0, case(8)), *scenario(1, case(9, seed=1), findings=[known])])).strata
    assert found is not None and (found.failed, found.worst.tactic, found.worst.cases) == (0, "b", 1)


def test_findings_name_the_smallest_shapes_and_how_often_one_case_was_run(tmp_path: Path) -> None:
    events = [event for number, tokens in enumerate((2, 9, 300, 70)) for event in scenario(
        number, case(tokens, 5), findings=[finding(of=case(tokens, 5))])]
    again = scenario(4, case(9, 5), findings=[finding(of=case(9, 5))])
    (one,) = summary(write(tmp_path / "run", [*events, *again])).open_findings
    assert one.shapes == ["T=2 H=64 I=32 E=8 K=2", "T=9 H=64 I=32 E=8 K=2", "T=70 H=64 I=32 E=8 K=2"]
    assert one.reruns == 2


def test_repeated_cases_count_once(tmp_path: Path) -> None:
    found = summary(write(tmp_path / "run", [*scenario(0, case()), *scenario(1, case())]))
    assert (found.executions, found.cases) == (6, 1)


def test_known_failures_are_counted_apart(tmp_path: Path) -> None:
    events = [*scenario(0), *scenario(1, findings=[finding(of=case(seed=1))]),
              *scenario(2, findings=[finding(of=case(seed=2), entry="an-entry")])]
    found = summary(write(tmp_path / "run", events))
    assert (found.cases, found.failures, found.known_failures) == (2, 1, 1)
    assert [(one.kind, one.tactic) for one in found.open_findings] == [("bad_tactic", "b")]
    assert [(one.kind, one.tactic) for one in found.known_findings] == [("bad_tactic", "b")]


@pytest.mark.parametrize(("check", "kind"), [("tuner", "stale_state"), ("layout", "layout_contract")])
def test_what_is_found_beside_a_case_says_nothing_about_its_answer(check: str, kind: str, tmp_path: Path) -> None:
    beside = finding(kind, tactic=None, entry="some-entry").model_copy(update={"check": check})
    wrong = Executed(scenario=0, number=9, check=check, role="beside", tactic=None, outcome="finding", seconds=0.1)
    events = scenario(0)
    told = Found(scenario=0, finding=beside.to_data())
    found = summary(write(tmp_path / "run", [*events[:-1], wrong, told, events[-1]]))
    assert (found.cases, found.failures, found.known_failures) == (1, 0, 0)
    (known,) = found.known_findings
    assert known.kind == ("tuning_range" if check == "tuner" else kind)


def test_a_burst_counts_each_of_its_executions(tmp_path: Path) -> None:
    burst = Executed(scenario=0, number=70, check="tactics", role="graph replay", tactic="a", outcome="ok", seconds=0.1, count=64)
    events = scenario(0)
    found = summary(write(tmp_path / "run", [*events[:-1], burst, events[-1]]))
    assert (found.executions, found.tactics["a"]) == (67, 2)


def test_a_failed_execution_without_a_finding_is_a_failure(tmp_path: Path) -> None:
    assert summary(write(tmp_path / "run", scenario(0, outcome="finding"))).failures == 1


def test_what_could_not_be_judged_is_no_case(tmp_path: Path) -> None:
    found = summary(write(tmp_path / "run", scenario(0, outcome="unjudged")))
    assert (found.executions, found.cases, found.bound, found.repeats) == (3, 0, 1.0, 0)


def test_a_refusal_is_judged_but_covers_no_tactic(tmp_path: Path) -> None:
    found = summary(write(tmp_path / "run", scenario(0, outcome="refused")))
    assert (found.cases, found.tactics_covered, found.repeats) == (1, [], 1)


def test_a_tactic_that_only_crashed_is_offered_and_not_covered(tmp_path: Path) -> None:
    found = summary(write(tmp_path / "run", scenario(0, findings=[finding("crash", "z")])))
    assert found.tactics["z"] == 0 and "z" not in found.tactics_covered and found.repeats == 0


def test_whether_all_tactics_are_known(tmp_path: Path) -> None:
    many = [str(number) for number in range(tallies.FORCED_PER_SCENARIO)]
    assert not summary(write(tmp_path / "many", scenario(0, tactics=many))).tactics_known
    assert summary(write(tmp_path / "none", scenario(0, tactics=()))).tactics_known
    swept = [Swept(scenario=0, tactic=tactic, outcome="ok", seconds=seconds, runs=3)
             for tactic, seconds in ((None, 4.0), ("1", 2.0), ("2", 1.0), ("9", None))]
    found = summary(write(tmp_path / "sweep", scenario(0, tactics=many, swept=swept)))
    assert found.tactics_known and found.tactics["9"] == 0
    assert found.speed_up is not None and found.speed_up.median == 4.0


def test_the_number_of_forced_tactics_is_that_of_the_check() -> None:
    from moeguard.checks.tactics import PER_SCENARIO

    assert tallies.FORCED_PER_SCENARIO == PER_SCENARIO


def test_a_resumed_scenario_counts_its_last_attempt(tmp_path: Path) -> None:
    lost = scenario(0, findings=[finding()])[:-1]
    assert summary(write(tmp_path / "run", [*lost, *scenario(0)])).failures == 0


def test_runs_add_up(tmp_path: Path) -> None:
    one, two = (read(write(tmp_path / name, events)) for name, events in (
        ("one", scenario(0, case(seed=1))), ("two", [*scenario(0, case(seed=1), findings=[finding()]), *scenario(1)])))
    assert isinstance(one, RunEvidence) and isinstance(two, RunEvidence)
    total = tallies.Tally()
    total.add(one.cells[CELL])
    total.add(two.cells[CELL])
    found = Summary.of([RunId(run_id="x", started=one.started, sha256="0" * 64)], total)
    assert (found.executions, found.cases, found.failures) == (9, 1, 1)


def test_a_case_that_was_given_is_not_one_of_the_distribution(tmp_path: Path) -> None:
    events = [*scenario(0, case(7)), *scenario(1, case(9), findings=[finding(of=case(9))])]
    found = summary(write(tmp_path / "run", events, options={"cases": [{}]}))
    assert (found.executions, found.cases, found.failures, found.token_buckets) == (6, 1, 1, [4, 8])


def test_a_pair_goes_with_the_single_that_is_quarantined(tmp_path: Path) -> None:
    names = ("(3, -1)", "(4, -1)", "(-1, 5)", "(3, 5)", "(4, 5)")
    evidence = read(write(tmp_path / "run", scenario(0, tactics=names)))
    assert isinstance(evidence, RunEvidence)
    left = evidence.cells[CELL].without(["(3, -1)"])
    assert set(left.tactics) == left.right == {"default", "(4, -1)", "(-1, 5)", "(4, 5)"} and left.executions == 4


@pytest.mark.parametrize("what", ["budget", "memory", "disk space"])
def test_a_case_that_was_cut_short_is_not_clean(what: str, tmp_path: Path) -> None:
    note = Noted(scenario=0, backend="mine", recipe="bf16", what=what, reason="ended")
    events = scenario(0)
    found = summary(write(tmp_path / "run", [*events[:-1], note, events[-1], *scenario(1)]))
    assert (found.executions, found.cases, found.failures) == (6, 1, 0)
    alone = summary(write(tmp_path / "alone", [*events[:-1], note, events[-1]]))
    assert not alone.tactics_known


def test_a_known_crash_is_not_launched_and_not_clean(tmp_path: Path) -> None:
    (start, *_, end) = scenario(0)
    note = Noted(scenario=0, backend="mine", recipe="bf16", what="known crash", reason="an-entry")
    found = summary(write(tmp_path / "run", [start, note, end, *scenario(1)]))
    assert (found.cases, found.known_failures) == (1, 1)


def test_a_plugin_in_the_place_of_a_built_in_backend_is_no_evidence_about_it(tmp_path: Path) -> None:
    note = Noted(scenario=-1, backend="triton", recipe="", what="built-in", reason="my.py registers another one")
    assert "triton" in stale(write(tmp_path / "run", [note, *scenario(0, backend="triton")]))


def test_runs_on_another_gpu_are_not_added(tmp_path: Path) -> None:
    one = write(tmp_path / "one", scenario(0))
    two = write(tmp_path / "two", scenario(1), run_id="run-2", environment={**ENVIRONMENT, "gpu": "NVIDIA H100"})
    pool = Pool.of([read(one), read(two)])
    assert [cell.summary().gpu for cell in pool.cells.values()] == ["NVIDIA H200"]
    assert [one.reason for one in pool.stale] == ["it was made on NVIDIA H100, other evidence of the same cell on NVIDIA H200"]


def test_environments_are_kept_apart(tmp_path: Path) -> None:
    other = read(write(tmp_path / "run", scenario(0), environment={**ENVIRONMENT, "driver": "580.1"}))
    assert isinstance(other, RunEvidence)
    assert [cell.driver for cell in other.cells] == ["580.1"]


def without(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


def manifest(**changes: object) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        data = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps(data | changes))
    return change


def journal(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda run: (run / "journal.jsonl").write_bytes(change((run / "journal.jsonl").read_bytes())) and None


def link(run: Path) -> None:
    (run / "journal.jsonl").rename(run / "elsewhere")
    (run / "journal.jsonl").symlink_to(run / "elsewhere")


def swap(run: Path) -> None:
    (file,) = (run / "cases").iterdir()
    file.rename(file.with_name("0123456789ab.json"))


@pytest.mark.parametrize(("damage", "reason"), [
    (without("manifest.json"), "manifest.json is missing"),
    (without("journal.jsonl"), "journal.jsonl is missing"),
    (lambda run: shutil.rmtree(run / "cases"), "the case of finding .* is missing"),
    (manifest(schema=2), "another schema than 1"),
    (manifest(schema=True), "another schema than 1"),
    (manifest(run_id=""), "no run_id"),
    (manifest(environment=None), "no environment"),
    (manifest(started=None), "does not say when"),
    (manifest(started="yesterday"), "does not say when"),
    (manifest(options=[]), "no options"),
    (lambda run: (run / "manifest.json").write_text("{"), "not valid JSON"),
    (lambda run: (run / "manifest.json").write_bytes(b"\xff"), "not valid JSON"),
    (journal(lambda data: b""), "journal.jsonl is empty"),
    (journal(lambda data: data[:-1]), "truncated"),
    (journal(lambda data: data.rsplit(b"\n", 2)[0] + b"\n"), "did not come to its end"),
    (journal(lambda data: data.replace(b'"event":"executed"', b'"event":"exekuted"', 1)), "line 2 is damaged"),
    (journal(lambda data: data.split(b"\n", 1)[1]), "never started"),
    (link, "no plain file"),
    (swap, "another case than its name says"),
    (lambda run: (run / "cases" / "x").write_text("{}"), "cases/x is not a case"),
    (lambda run: (run / "cases" / "x").mkdir(), "no plain file"),
])
def test_damage_is_stale(damage: Callable[[Path], object], reason: str, tmp_path: Path) -> None:
    run = write(tmp_path / "run", scenario(0, findings=[finding()]))
    damage(run)
    assert re.search(reason, stale(run))


@pytest.mark.parametrize("events", [
    [ScenarioStarted(scenario=0, draw=0, round=0, backend="mine", recipe="bf16", case={}, fingerprint="x")],
    [Executed(scenario=0, number=0, check="memory", role="base", tactic=None, outcome="ok", seconds=0.1)],
    [RunFinished(seconds=1.0, interrupted=True)],
])
def test_an_unfinished_run_is_stale(events: list[Event], tmp_path: Path) -> None:
    assert stale(write(tmp_path / "run", events, complete=not isinstance(events[0], RunFinished)))


def test_a_folder_that_is_not_there_is_stale(tmp_path: Path) -> None:
    assert "missing" in stale(tmp_path / "nothing")


def test_a_real_run(clean_run: object, broken_run: object) -> None:
    for run, failures in ((clean_run, 0), (broken_run, 1)):
        evidence = read(run.path)  # type: ignore[attr-defined]
        assert isinstance(evidence, RunEvidence), evidence
        tally = next(iter(evidence.cells.values()))
        assert tally.executions == run.data["executions"]  # type: ignore[attr-defined]
        assert len({one.fingerprint for one in tally.defects}) == failures


def test_evidence_needs_no_torch() -> None:
    code = "import sys, moeguard.gate.evidence, moeguard.gate.summary; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
