"""The gate: recorded evidence that is there and enough is allowed; whatever else is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from gate_entries import TODAY
from gate_runs import ENVIRONMENT, case, finding, scenario, scenarios, write

from moeguard.core.events import Event
from moeguard.core.finding import Finding
from moeguard.gate.allowlist import Allowlist
from moeguard.gate.evidence import read
from moeguard.gate.judgement import Judgement, judge
from moeguard.gate.markdown import markdown
from moeguard.gate.policy import Policy
from moeguard.gate.pool import Pool
from moeguard.gate.update import update

EXPIRES = date(2026, 12, 31)
POLICY = Policy.load()


def pool(*folders: Path) -> Pool:
    return Pool.of(read(folder) for folder in folders)


def updated(*folders: Path, text: str | None = None) -> str:
    return update(text, "list", pool(*folders).cells, POLICY, TODAY, EXPIRES)[0]


def judged(text: str, *folders: Path, level: str = "O2", **options: Any) -> Judgement:
    return judge(Allowlist.parse(text, "list"), pool(*folders), level, POLICY, TODAY, **options)


def with_findings(*found: Finding) -> Iterable[Event]:
    return [*scenarios(340), *scenario(340, case(seed=340), findings=found)]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("healthy") / "run", scenarios(340))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bad = finding(backend="other", of=case(seed=340))
    events = [*scenarios(340, backend="other"), *scenario(340, case(seed=340), backend="other", findings=[bad])]
    return write(tmp_path_factory.mktemp("broken") / "run", events, run_id="run-2")


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_recorded_evidence_that_is_enough_is_allowed(healthy: Path, level: str) -> None:
    found = judged(updated(healthy), healthy, level=level)
    assert (found.allowed, found.exit_code, [one.outcome for one in found.decisions]) == (True, 0, ["on"])


def test_a_bad_tactic_is_refused_and_named(healthy: Path, broken: Path) -> None:
    found = judged(updated(healthy, broken), healthy, broken)
    assert (found.allowed, found.exit_code) == (False, 1)
    assert {one.cell.backend: one.outcome for one in found.decisions} == {"mine": "on", "other": "off"}
    assert "bad_tactic of tactic b" in found.decisions[1].reason
    assert "bad_tactic of tactic b" in markdown(found)
    assert "| other | bf16 | sm90 | off | autotune, open_findings, bound | - | not measured |" in markdown(found)


def test_other_cells_can_be_left_out(healthy: Path, broken: Path) -> None:
    assert judged(updated(healthy, broken), healthy, broken, wanted=lambda cell: cell.backend == "mine").allowed


def test_evidence_that_is_not_recorded_is_stale(healthy: Path, broken: Path) -> None:
    found = judged(updated(broken), healthy)
    assert found.exit_code == 3 and "not in list" in found.stale[0].reason


def test_a_cell_without_an_entry_is_off(tmp_path: Path) -> None:
    events = [*scenarios(340), *scenario(340, backend="third")]
    run = write(tmp_path / "run", events)
    text = update(None, "list", {cell: one for cell, one in pool(run).cells.items() if cell.backend == "mine"}, POLICY,
                  TODAY, EXPIRES)[0]
    found = judged(text, run)
    assert found.exit_code == 1
    names = {one.cell.backend: [failed.name for failed in one.failed] for one in found.decisions}
    assert names == {"mine": [], "third": ["listed"]}


def test_an_entry_that_is_on_without_evidence_is_stale(healthy: Path, broken: Path) -> None:
    found = judged(updated(healthy, broken), broken)
    assert found.exit_code == 3 and [failed.name for failed in found.decisions[-1].failed] == ["evidence"]


def test_a_recorded_run_that_is_missing_is_stale(healthy: Path, tmp_path: Path) -> None:
    second = write(tmp_path / "run", scenarios(10), run_id="run-3")
    text = updated(healthy, second)
    assert judged(text, healthy, second).allowed
    assert judged(text, healthy).exit_code == 3


def test_a_number_that_the_runs_do_not_show_is_stale(healthy: Path) -> None:
    text = updated(healthy).replace("executions = 1020", "executions = 1021")
    found = judged(text, healthy)
    assert found.exit_code == 3 and "evidence.executions is not what the runs show" in found.stale[0].reason


def test_a_run_given_twice_counts_once(healthy: Path, tmp_path: Path) -> None:
    again = shutil.copytree(healthy, tmp_path / "copy")
    assert judged(updated(healthy), healthy, again).allowed
    changed = write(tmp_path / "changed", scenarios(12))
    assert judged(updated(healthy), healthy, changed).exit_code == 3


def test_nothing_is_empty(healthy: Path) -> None:
    found = judged(updated(healthy).replace('autotune = "on"', 'autotune = "off"').replace(
        'levels = ["O1", "O2", "O3"]', "levels = []"))
    assert (found.exit_code, found.allowed, found.to_data()["cells"]) == (3, False, [])


def test_flipping_asks_what_would_be(healthy: Path, broken: Path) -> None:
    off = updated(healthy).replace('autotune = "on"', 'autotune = "off"').replace('levels = ["O1", "O2", "O3"]', "levels = []")
    assert judged(off, healthy).exit_code == 1
    assert judged(off, healthy, flip="on").exit_code == 0
    assert judged(updated(broken), broken, flip="on").exit_code == 1
    assert judged(updated(broken), broken, flip="off").exit_code == 0
    assert judged(off, healthy, flip="on", level="O0").exit_code == 1


def test_a_clock_in_the_past_is_inconclusive(healthy: Path) -> None:
    found = judge(Allowlist.parse(updated(healthy), "list"), pool(healthy), "O2", POLICY, date(2026, 4, 30))
    assert (found.exit_code, found.allowed) == (3, False)
    assert found.stale[0].reason == "the clock says 2026-04-30, but the run was started on 2026-05-01"


def test_flipping_says_what_would_change_and_what_off_costs(healthy: Path, broken: Path) -> None:
    off = updated(healthy, broken).replace('autotune = "on"', 'autotune = "off"').replace('["O1", "O2", "O3"]', "[]")
    found = judged(off, healthy, broken, flip="on")
    assert [(one.before, one.outcome) for one in found.decisions] == [("off", "on"), ("off", "off")]
    said = markdown(found)
    assert "## moeguard gate, level O2, autotune=on" in said and "| on (was off) |" in said and "| stays off |" in said
    assert "what off costs is not measured (`moeguard sweep --backend mine --recipe bf16 --device cuda`)" in said
    assert [one["before"] for one in found.to_data()["cells"]] == ["off", "off"]


def test_switching_off_does_not_help_a_backend_to_avoid(tmp_path: Path) -> None:
    run = write(tmp_path / "run", with_findings(finding("mismatch", None, of=case(seed=340))))
    text = updated(run)
    assert 'backend_use = "avoid"' in text
    found = judged(text, run, flip="off")
    assert found.exit_code == 1 and [one.name for one in found.decisions[0].failed] == ["backend_use"]


def test_o3_is_never_on_alone_for_the_same_finding(tmp_path: Path) -> None:
    run = write(tmp_path / "run", with_findings(finding("perf_regression", of=case(seed=340))))
    text = updated(run)
    assert "levels = []" in text
    by_hand = text.replace('autotune = "off"', 'autotune = "on"').replace("levels = []", 'levels = ["O3"]')
    found = judged(by_hand, run, level="O3")
    assert [one.name for one in found.decisions[0].failed] == ["consistent_levels"]


@pytest.mark.parametrize("name", ["manifest.json", "journal.jsonl", "case"])
def test_any_changed_byte_is_stale(name: str, broken: Path, tmp_path: Path) -> None:
    text = updated(broken)
    run = shutil.copytree(broken, tmp_path / "run")
    file = run / name if name != "case" else next((run / "cases").iterdir())
    data = file.read_bytes()
    for offset in sorted({*range(0, len(data), max(1, len(data) // 7)), len(data) - 1}):
        for flip in (0x01, 0x80):
            file.write_bytes(data[:offset] + bytes([data[offset] ^ flip]) + data[offset + 1:])
            assert judged(text, run).exit_code == 3, offset
    file.write_bytes(data)
    assert judged(text, run).exit_code == 1


def test_an_update_keeps_comments_and_waivers(healthy: Path) -> None:
    text = "# ours\n" + updated(healthy).replace('backend_use = "ok"', 'backend_use = "ok"  # asked for') + (
        '\n# a waiver\n[[cell.waiver]]\nrequirement = "repeats"\nowner = "o"\nreason = "r"\nreference = "x"\n'
        "expires = 2026-07-01\n")
    done, (change,) = update(text, "list", pool(healthy).cells, POLICY, TODAY, date(2027, 1, 31))
    assert done == text.replace("expires = 2026-12-31", "expires = 2027-01-31")
    assert (change.before, change.after) == (("O1", "O2", "O3"), ("O1", "O2", "O3"))


def test_an_update_adds_cells_and_turns_off(healthy: Path, tmp_path: Path) -> None:
    bad = write(tmp_path / "bad", with_findings(finding(of=case(seed=340))), run_id="run-9")
    done, (change,) = update(updated(healthy), "list", pool(bad).cells, POLICY, TODAY, EXPIRES)
    assert change.after == () and 'autotune = "off"' in done and "open findings: bad_tactic of tactic b" in done
    other = write(tmp_path / "fp16", scenarios(340, recipe="fp16"), run_id="run-8")
    both = Allowlist.parse(updated(other, text=done), "list")
    assert [(entry.recipe, entry.autotune) for entry in both.entries] == [("bf16", "off"), ("fp16", "on")]


def test_tactics_may_have_any_name(tmp_path: Path) -> None:
    names = ['(0, 1)', 'a"b', "a.b", "tile 64\u00d764", "x = 1\n[cell]"]
    run = write(tmp_path / "run", scenarios(20, tactics=names))
    (entry,) = Allowlist.parse(updated(run), "list").entries
    assert set(entry.evidence.tactics) == {*names, "default"}


def test_environments_are_never_mixed(healthy: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "run", scenarios(10), run_id="run-5", environment={**ENVIRONMENT, "arch": "sm100"})
    found = pool(healthy, other)
    assert [cell.arch for cell in found.cells] == ["sm90", "sm100"]
    assert [one.summary().cases for one in found.cells.values()] == [340, 10]
