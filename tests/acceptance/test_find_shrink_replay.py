"""End to end: a healthy plug-in passes; one that leaves a column unwritten at odd T is found, shrunk and replayed exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import ROOT, SMOKE, Called, Run

import moeguard as mg
from moeguard.backends import registry

Cli = Callable[..., Called]


@pytest.fixture
def finding(broken_run: Run) -> dict[str, Any]:
    (finding,) = (one for one in broken_run.data["findings"] if one["kind"] == "unwritten_output")
    return finding


def test_the_plugin_of_the_readme_is_short_and_clean(clean_run: Run, healthy_plugin: Path) -> None:
    lines = [line for line in healthy_plugin.read_text().splitlines() if line.strip()]
    assert len(lines) <= 27
    assert clean_run.called.code == 0


def test_the_defect_is_all_that_is_found(broken_run: Run, finding: dict[str, Any]) -> None:
    assert broken_run.called.code == 1
    assert [one["kind"] for one in broken_run.data["findings"]] == ["unwritten_output"]
    assert (finding["backend"], finding["recipe"], finding["reproduced"], finding["known"]) == ("holey", "bf16", True, False)
    assert "were never written" in finding["sentence"]


def test_the_case_is_minimal(finding: dict[str, Any]) -> None:
    shape = finding["case"]["shape"]
    assert (shape["num_tokens"], shape["num_experts"], shape["top_k"]) == (1, 1, 1)
    assert shape["hidden_size"] <= 16 and shape["intermediate_size"] <= 16
    simple = {"routing": "uniform", "inputs": "normal", "scales": "normal", "weights": "normal", "layout": "contiguous"}
    assert {name: finding["case"][name]["kind"] for name in simple} == simple


def test_it_is_replayed_exactly(broken_run: Run, broken_plugin: Path, finding: dict[str, Any], tmp_path: Path, cli: Cli) -> None:
    stored = json.loads((broken_run.path / "findings.jsonl").read_text().splitlines()[0])
    (case,) = (broken_run.path / "cases").iterdir()
    done = cli("replay", case, "--backend", "holey", "--plugin", broken_plugin, "--device", "cpu", "--json",
               "--out", tmp_path / "run")
    assert done.code == 1
    (again,) = done.data["findings"]
    same = ("kind", "fingerprint", "case", "sentence", "backend", "recipe", "tactic")
    assert {name: again[name] for name in same} == {name: finding[name] for name in same}
    numbers = json.loads((tmp_path / "run" / "findings.jsonl").read_text().splitlines()[0])["numbers"]
    assert numbers == stored["numbers"]


def test_the_healthy_backend_passes_the_same_case(broken_run: Run, healthy_plugin: Path, tmp_path: Path, cli: Cli) -> None:
    (case,) = (broken_run.path / "cases").iterdir()
    done = cli("replay", case, "--backend", "loop", "--plugin", healthy_plugin, "--device", "cpu", "--json",
               "--out", tmp_path / "run")
    assert (done.code, done.data["findings"]) == (0, [])


def test_an_even_number_of_tokens_passes(finding: dict[str, Any], broken_plugin: Path) -> None:
    registry.load_plugin(broken_plugin)
    case = mg.Case.model_validate(finding["case"])
    verdict = mg.check(registry.get("holey"), case)
    assert not verdict.passed
    assert {one.kind for one in verdict.findings} == {"unwritten_output"}
    assert mg.check(registry.get("torch_reference"), case).passed


def test_reports_of_the_finding_can_be_read_alone(broken_run: Run, finding: dict[str, Any]) -> None:
    page = (broken_run.path / "report.html").read_text()
    assert "unwritten_output" in page and "http://" not in page.replace("http://www.w3.org", "")
    assert finding["fingerprint"] in (broken_run.path / "junit.xml").read_text() + page
    assert "unwritten_output" in (broken_run.path / "summary.md").read_text()


@pytest.mark.soak
def test_a_long_campaign_on_healthy_backends_finds_nothing(healthy_plugin: Path, tmp_path: Path, cli: Cli) -> None:
    for options in (["--plugin", healthy_plugin, *SMOKE], ["--backend", "torch_reference", "--profile", "ci", "--device", "cpu"]):
        path = tmp_path / f"run{len(options)}"
        done = cli("run", *options, "--budget", "10m", "--workers", 2, "--json", "--out", path)
        assert (done.code, done.data["findings"]) == (0, [])


def test_the_readme_names_what_exists(cli: Cli) -> None:
    text = (ROOT / "README.md").read_text()
    for command in ("run", "replay", "selftest", "report"):
        assert f"moeguard {command}" in text
        assert cli(command, "--help").code == 0
