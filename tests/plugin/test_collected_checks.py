"""``pytest --moeguard``: what is collected, chosen, passed, failed and skipped."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import ROOT
from ledger_files import ledger
from plugin.conftest import LOADED, QUICK, Ran, reason

from moeguard.checks.plan import GROUPS
from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES

Run = Callable[..., Ran]
CELL = "moeguard::loop::bf16"

ODD = '''
import os
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference

class Absent(TorchReference):
    name = "absent"
    def availability(self):
        return mg.Availability.no("needs SM 10.0")

class Declines(TorchReference):
    name = "declines"
    def supports(self, case):
        return mg.Support.no("made for nothing")

class Dies(TorchReference):
    name = "dies"
    def prepare(self, weights, case):
        os._exit(3)

class Empty(TorchReference):
    name = "empty"
    def supports(self, case):
        raise mg.MoeguardError("no answer")

class Narrow(TorchReference):
    name = "narrow"
    def supports(self, case):
        return mg.Support.yes() if case.shape.hidden_size == 7168 else mg.Support.no("made for H = 7168")

for kind in (Absent, Declines, Dies, Empty, Narrow):
    mg.register(kind())
'''


@pytest.fixture
def odd(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("odd") / "odd.py"
    path.write_text(ODD)
    return f"--moeguard-plugin={path}"


def test_an_empty_folder_in_parallel(run: Run) -> None:
    """The command of the documentation, here for two recipes: two workers, a JUnit file, no test file."""
    recipes = ("bf16", "mxfp4_bf16")
    chosen = [f"--moeguard-recipe={recipe}" for recipe in recipes]
    done = run("--moeguard", "--moeguard-backend=torch_reference", *chosen, "-n", 2, "-v")
    assert done.code == 0, done.out
    assert set(done.tests) == {f"moeguard::torch_reference::{recipe}::{group}" for recipe in recipes for group in GROUPS}
    for recipe in recipes:
        for group in GROUPS:
            outcome = done.tests[f"moeguard::torch_reference::{recipe}::{group}"]
            assert outcome == "passed" or group in ("contract", "tuner", "layout"), (recipe, group, done.out)
    by_cell: dict[str, set[str]] = {}
    for line in done.out.splitlines():
        if line.startswith("[gw") and "moeguard::" in line:
            worker, test = line.split()[0], next(word for word in line.split() if word.startswith("moeguard::"))
            by_cell.setdefault(test.rpartition("::")[0], set()).add(worker)
    assert len(by_cell) == len(recipes)
    assert all(len(workers) == 1 for workers in by_cell.values()), by_cell
    executions = [int(one.attrib["value"]) for one in done.junit.iter("property") if one.attrib["name"] == "executions"]
    assert sum(executions) > 100


def test_a_healthy_plugin_passes_and_says_what_did_not_apply(run: Run, loop: str) -> None:
    done = run(*QUICK, loop, "-rs")
    assert done.code == 0, done.out
    assert done.tests == {f"{CELL}::{group}": "skipped" if group in ("tactics", "tuned", "tuner", "layout", "contract")
                          else "passed" for group in GROUPS}
    assert "the backend offers none" in reason(done.junit, "tactics")
    assert "the backend has no tune()" in reason(done.junit, "tuned")
    assert "the backend has no tuning_caps()" in reason(done.junit, "tuner")
    assert "the backend has no foreign_layouts()" in reason(done.junit, "layout")


def test_a_defect_fails_with_sentence_numbers_case_and_replay(run: Run, holey: str, pytester: pytest.Pytester) -> None:
    done = run("--moeguard", "--moeguard-backend=holey", "--moeguard-recipe=bf16", "--moeguard-budget=2s", "--moeguard-out=found",
               holey)
    assert done.code == 1
    failed = [name for name, outcome in done.tests.items() if outcome == "failure"]
    assert failed == ["moeguard::holey::bf16::memory"], "what is wrong in memory alone fails its own group, and no other"
    assert "error" not in done.tests.values()
    text = reason(done.junit, "memory")
    assert "unwritten_output: holey, bf16" in text
    assert "output elements were never written" in text
    assert "unwritten: " in text and "reproduced: yes" in text
    assert "Traceback" not in text and "runtest" not in text
    command = shlex.split(next(line for line in text.splitlines() if line.startswith("replay: ")).removeprefix("replay: "))
    case = Path(command[2])
    assert case.is_relative_to(pytester.path / "found" / "holey-bf16" / "cases")
    assert Case.load(case) == Case.model_validate(json.loads(next(line for line in text.splitlines() if line.startswith("{"))))
    again = subprocess.run([sys.executable, "-m", "moeguard", *command[1:], "--device", "cpu", "--json", "--out", "again"],
                           cwd=pytester.path, capture_output=True, text=True, check=False, timeout=120,
                           env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (again.returncode, json.loads(again.stdout)["findings"][0]["kind"]) == (1, "unwritten_output")
    for name in ("report.html", "summary.md", "journal.jsonl", "manifest.json"):
        assert (pytester.path / "found" / "holey-bf16" / name).exists()


def test_x_stops_at_the_first_failure_and_k_chooses(run: Run, holey: str) -> None:
    done = run("--moeguard", "--moeguard-backend=holey", "--moeguard-recipe=bf16", "--moeguard-budget=1s", holey, "-x",
               "-k", "values or memory or repeat")
    assert done.code == 1
    assert done.tests == {"moeguard::holey::bf16::values": "passed", "moeguard::holey::bf16::memory": "failure"}
    assert f"collected {len(GROUPS)} items / {len(GROUPS) - 3} deselected / 3 selected" in done.out


def test_backends_that_run_nothing(run: Run, odd: str) -> None:
    done = run("--moeguard", "--moeguard-backend=absent,declines,dies,empty", "--moeguard-recipe=bf16", "--moeguard-budget=1s",
               odd, "-k", "values")
    assert done.tests == {
        "moeguard::absent::bf16::values": "skipped", "moeguard::declines::bf16::values": "skipped",
        "moeguard::dies::bf16::values": "failure", "moeguard::empty::bf16::values": "failure"}, done.out
    messages = [one.attrib.get("message", "") for one in done.junit.iter("skipped")]
    assert any("absent: needs SM 10.0" in message for message in messages)
    assert any("made for nothing" in message for message in messages)
    assert "prepare killed the process (exit code 3)" in done.out


def test_a_recipe_that_is_taken_but_never_executed_fails(run: Run, odd: str) -> None:
    """The backend takes a sample of the recipe, as doctor asks, but none of the small cases that a smoke campaign draws."""
    done = run("--moeguard", "--moeguard-backend=narrow", "--moeguard-recipe=bf16", "--moeguard-budget=1s", odd, "-k",
               "values or memory")
    assert set(done.tests.values()) == {"failure"}, done.out
    text = reason(done.junit, "values")
    told = r"narrow bf16 executed no check: (the backend takes the recipe, but all of \d+ drawn cases were refused|" \
        r"the budget ended during the scenario)(: |; )made for H = 7168"  # the second where it ends between case and refusal
    assert re.search(told, text), text


def test_known_findings_fail_no_test_and_are_shown(run: Run, holey: str, pytester: pytest.Pytester) -> None:
    (pytester.path / "known.toml").write_text(ledger())
    done = run("--moeguard", "--moeguard-backend=holey", "--moeguard-recipe=bf16", "--moeguard-budget=1s", holey,
               "--moeguard-ledger=known.toml", "-k", "values or memory", "-rP")
    assert done.code == 0, done.out
    assert done.tests["moeguard::holey::bf16::memory"] == "passed"
    assert "Known as last-column (holey#1, until 2999-12-31)" in done.out
    values = [one.attrib["value"] for one in done.junit.iter("property") if one.attrib["name"] == "known"]
    assert values == ["unwritten_output: last-column"]


def test_the_same_kind_elsewhere_fails(run: Run, holey: str, pytester: pytest.Pytester) -> None:
    (pytester.path / "known.toml").write_text(ledger({"condition": [{"field": "shape.num_tokens", "at_most": 8}]}))
    done = run("--moeguard", "--moeguard-backend=holey", "--moeguard-recipe=bf16", "--moeguard-budget=2s", holey,
               "--moeguard-ledger=known.toml", "-k", "memory")
    assert done.tests == {"moeguard::holey::bf16::memory": "failure"}
    assert "Known as" not in reason(done.junit, "memory")


def test_ids_are_the_same_everywhere_and_need_no_campaign(run: Run, loop: str, pytester: pytest.Pytester) -> None:
    wanted = [f"moeguard::{backend}::{recipe}::{group}" for backend in ("torch_reference", "loop") for recipe in RECIPES
              for group in GROUPS]
    done = run("--moeguard", "--moeguard-backend=torch_reference,loop", loop, "--collect-only", "-q")
    assert done.code == 0
    assert [line for line in done.out.splitlines() if line.startswith("moeguard::")] == wanted
    assert not list(pytester.path.glob(".pytest_cache/d/moeguard/*"))


def test_tests_are_chosen_by_id_and_marker_and_lie_beside_own_tests(
        pytester: pytest.Pytester, in_process: None, loop: str) -> None:
    pytester.makepyfile(test_own="def test_mine():\n    pass\n")

    def chosen(*arguments: str) -> list[str]:
        done = pytester.runpytest_inprocess(*LOADED, *QUICK, loop, "--collect-only", "-q", *arguments)
        return [line for line in done.outlines if "::" in line]

    every = [f"{CELL}::{group}" for group in GROUPS]
    assert chosen() == ["test_own.py::test_mine", *every]
    assert chosen(f"{CELL}::memory") == [f"{CELL}::memory"]
    assert chosen(CELL, "test_own.py") == ["test_own.py::test_mine", *every]
    assert chosen("-m", "not moeguard") == ["test_own.py::test_mine"]
    assert chosen("-m", "moeguard", "-k", "repeat") == [f"{CELL}::repeat"]


@pytest.mark.parametrize(("name", "words"), [
    ("moeguard::lop::bf16", "backend: unknown value 'lop'; allowed: loop; a backend of your own needs --moeguard-plugin FILE.py"),
    ("moeguard::loop::nvfp5", "recipe: unknown value 'nvfp5'; allowed: bf16"),
    ("moeguard::loop::bf16::value", "group: unknown value 'value'; allowed: values, memory, "),
    (f"{CELL}::values::x", "allowed: moeguard::backend::recipe::group"),
])
def test_ids_of_nothing_are_usage_errors(name: str, words: str, pytester: pytest.Pytester, in_process: None, loop: str) -> None:
    done = pytester.runpytest_inprocess(*LOADED, *QUICK, loop, CELL, name)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in done.errlines if line]
    assert len(lines) == 1 and lines[0].startswith(f"ERROR: {name}: ") and words in lines[0], lines


def test_the_header_counts_what_is_asked_for(pytester: pytest.Pytester, in_process: None, loop: str) -> None:
    options = ("--moeguard", loop, "--moeguard-backend=loop,torch_reference", "--moeguard-recipe=bf16,fp16", "--collect-only")
    every = pytester.runpytest_inprocess(*LOADED, *options)
    every.stdout.fnmatch_lines(["moeguard: profile smoke, 3 s for each of 4 cells (backend x recipe), seed 0, device *",
                                f"collected {4 * len(GROUPS)} items"])
    some = pytester.runpytest_inprocess(*LOADED, *options, f"{CELL}::values", f"{CELL}::memory")
    some.stdout.fnmatch_lines(["moeguard: profile smoke, 3 s for 1 cell *", "collected 2 items"])


@pytest.mark.parametrize(("option", "words"), [
    ("--moeguard-backend=nope", ("--moeguard-backend: ", "nope", "torch_reference", "own needs --moeguard-plugin")),
    ("--moeguard-recipe=nope", ("--moeguard-recipe", "nope", "bf16")),
    ("--moeguard-profile=nope", ("--moeguard-profile", "nope", "smoke")),
    ("--moeguard-budget=soon", ("--moeguard-budget", "soon")),
    ("--moeguard-seed=-1", ("--moeguard-seed", "-1")),
    ("--moeguard-plugin=missing.py", ("--moeguard-plugin", "missing.py")),
    ("--moeguard-ledger=missing.toml", ("missing.toml", "cannot read the ledger")),
    ("--moeguard-out=.", ("--moeguard-out", "other files")),
])
def test_wrong_options_are_usage_errors(option: str, words: tuple[str, ...], pytester: pytest.Pytester, in_process: None) -> None:
    (pytester.path / "mine.txt").write_text("")
    done = pytester.runpytest_inprocess(*LOADED, "--moeguard", option)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    text = done.stderr.str()
    assert all(word in text for word in words), text
    assert "Traceback" not in text
