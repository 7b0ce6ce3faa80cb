"""Spot checks as evidence: beside a sweep they count, without one they are nothing, changed they are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import Called
from gate_runs import ENVIRONMENT, scenarios
from gate_runs import write as write_run
from sample_records import record

from moeguard.evals.answer import Answer
from moeguard.evals.options import Options
from moeguard.evals.record import Record

Cli = Callable[..., Called]
POLICY = """schema = 1
[level.O0]
never = true
""" + "".join(f"""[level.{level}]
min_executions = 100
max_bound = 0.2
min_repeats = 1
token_buckets_up_to = 64
{asked}
""" for level, asked in (("O1", ""), ("O2", "evals = { gsm8k = 0.05 }"), ("O3", "")))


def spot_check(folder: Path, lost: int = 0, *, finished: bool = True, environment: dict[str, Any] | None = None,
               **options: Any) -> Path:
    """The directory of a spot check of 100 questions, of cell mine/bf16 unless ``options`` say otherwise."""
    given = {"task": "gsm8k", "baseline_url": "http://a", "candidate_url": "http://b", "margin": 0.05, "backend": "mine",
             "recipe": "bf16"} | options
    kept = Record.create(folder, Options.of(**given), environment or ENVIRONMENT)
    for arm, wrong in (("baseline", 0), ("candidate", lost)):
        answers = [Answer.of(record(doc, doc >= wrong), "gsm8k").to_data() for doc in range(100)]
        kept.add({"event": "answers", "arm": arm, "chunk": 0, "repeat": 0, "seconds": 1.0, "retries": {}, "answers": answers})
    if finished:
        kept.add({"event": "finished"})
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"started": "2026-05-01T12:00:00+00:00"}))
    return folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("sweep") / "run", scenarios(60))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text(POLICY)
    return tmp_path


def decided(cli: Cli, level: str, *evidence: Path, update: bool = True) -> tuple[int, dict[str, Any]]:
    """Record this evidence and judge by it: exit code and the one cell, or what is stale."""
    words = [word for one in evidence for word in ("--evidence", one)]
    if update:
        assert cli("allow", "update", *words, "--policy", "policy.toml").code == 0
    done = cli("gate", *words, "--policy", "policy.toml", "--level", level, "--json")
    return done.code, done.data


def names(data: dict[str, Any]) -> list[str]:
    return [failed["name"] for cell in data["cells"] for failed in cell["failed_requirements"]]


def test_a_policy_asks_for_one_at_a_level(cli: Cli, here: Path, sweep: Path) -> None:
    assert decided(cli, "O1", sweep)[0] == 0
    code, data = decided(cli, "O2", sweep)
    assert (code, [one for one in names(data) if one == "evals"]) == (1, ["evals"])
    code, data = decided(cli, "O2", sweep, spot_check(here / "check"))
    assert (code, names(data)) == (0, [])
    assert data["cells"][0]["evidence"]["evals"][0]["outcome"] == "not_worse"
    assert data["cells"][0]["evidence"]["evals"][0]["upper_bound"] == pytest.approx(1 - 0.05**0.01, abs=2e-4)


def test_harm_counts_at_every_level(cli: Cli, here: Path, sweep: Path) -> None:
    for level in ("O1", "O3"):
        code, data = decided(cli, level, sweep, spot_check(here / level, lost=20))
        assert code == 1 and "evals" in names(data)
        assert "a spot check found harm: gsm8k worse: drop 20.00 points" in str(data)


def test_it_is_no_sweep(cli: Cli, here: Path, sweep: Path) -> None:
    assert cli("allow", "update", "--evidence", spot_check(here / "check"), "--policy", "policy.toml").code == 3
    decided(cli, "O1", sweep)
    code, data = decided(cli, "O1", here / "check", update=False)
    assert code == 3 and "a cell that no run among the evidence has executed" in data["stale"][0]["reason"]


@pytest.mark.parametrize(("change", "reason"), [
    (lambda folder: _replace(folder / "answers.jsonl", '"right": false', '"right": true'), "its evidence.evals is not"),
    (lambda folder: _replace(folder / "answers.jsonl", '"event": "finished"', '"event": "lost", "reason": "x"'), "to its end"),
    (lambda folder: _replace(folder / "manifest.json", '"margin": 0.05', '"margin": 0.06'), "its evidence.evals is not"),
    (lambda folder: _replace(folder / "answers.jsonl", '"right": ', '"wrong": '), "an answer is damaged"),
    (lambda folder: (folder / "answers.jsonl").write_bytes((folder / "answers.jsonl").read_bytes()[:-5]), "truncated"),
    (lambda folder: (folder / "manifest.json").write_text("{}"), "is none of a spot check"),
    (shutil.rmtree, "its evidence.evals is not what the runs show"),
])
def test_what_was_changed_does_not_count(cli: Cli, here: Path, sweep: Path, change: Callable[[Path], object],
                                         reason: str) -> None:
    check = spot_check(here / "check", lost=1)
    assert decided(cli, "O1", sweep, check)[0] == 0
    change(check)
    code, data = decided(cli, "O1", sweep, *([check] if check.exists() else []), update=False)
    assert code == 3 and reason in str(data["stale"]), data["stale"]


@pytest.mark.parametrize(("options", "reason"), [
    ({"finished": False}, "did not come to its end; finish it with moeguard eval gsm8k --resume"),
    ({"backend": None, "recipe": None}, "names no cell; make it with --backend and --recipe"),
    ({"recipe": "fp8_block"}, "a spot check of mine with fp8_block"),
    ({"environment": ENVIRONMENT | {"gpu": "NVIDIA B200"}}, "made on NVIDIA B200, the runs of the same cell on NVIDIA H200"),
])
def test_what_does_not_fit_does_not_count(cli: Cli, here: Path, sweep: Path, options: dict[str, Any], reason: str) -> None:
    decided(cli, "O1", sweep)
    code, data = decided(cli, "O1", sweep, spot_check(here / "check", **options), update=False)
    assert code == 3 and reason in str(data["stale"]), data["stale"]


def _replace(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
