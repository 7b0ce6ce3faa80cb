"""The derived files of a run directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from report_events import case, finding, manifest, refused, rich, scenario

from moeguard.core.case import Case
from moeguard.core.events import RunFinished
from moeguard.report import glossary, html, junit, markdown
from moeguard.report.outcome import fold
from moeguard.report.replay import command
from moeguard.report.writer import write, write_all

FILES = {"findings.jsonl", "executions.parquet", "summary.md", "junit.xml", "report.html"}


def test_everything_is_written_and_can_be_read(tmp_path: Path) -> None:
    outcome = write_all(tmp_path, manifest(), rich(120))
    assert {path.name for path in tmp_path.iterdir()} == FILES | {"cases"}
    assert len(pd.read_parquet(tmp_path / "executions.parquet")) == outcome.executions
    lines = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    assert [line["fingerprint"] for line in lines] == [one.fingerprint for one in outcome.findings]
    for line in lines:
        path = Path(line["replay"].split()[2])
        assert path.parent == tmp_path / "cases"
        assert Case.load(path) == Case.from_json(json.dumps(line["case"]))
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().tag == "testsuites"


def test_findings_lines_are_strict_json(tmp_path: Path) -> None:
    numbers = {"max_z": float("inf"), "all": [float("nan"), 1.0], "at": {"x": 2}}
    write_all(tmp_path, manifest(), scenario(0, findings=[finding(numbers=numbers, sentence="\ud800")]))
    text = (tmp_path / "findings.jsonl").read_text()
    data = json.loads(text, parse_constant=pytest.fail)
    assert data["numbers"] == {"max_z": "inf", "all": ["nan", 1.0], "at": {"x": 2}}


def test_zero_executions(tmp_path: Path) -> None:
    assert write_all(tmp_path, manifest(), []).exit_code == 3
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert (tmp_path / "findings.jsonl").read_text() == ""


def test_written_again_it_is_the_same(tmp_path: Path) -> None:
    contents = []
    for _ in range(2):
        write_all(tmp_path, manifest(), rich(40))
        contents.append({path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()})
    assert contents[0] == contents[1]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.md"
    write(path, "old")

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write(path, "new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("summary.md", "old")]


def test_summary_says_what_ran_and_what_did_not() -> None:
    value = finding(sentence="Row 3 | column 4\n is <b>wrong</b> `x`.", entry="an-entry",
                    numbers={"max_z": 18.0, "max_z_row": 3, "max_z_column": 4, "tau": 5.5, "rules": ["element"]})
    events = [*scenario(0, findings=[value]), *refused(1, reason="needs a|b"), RunFinished(seconds=75.0)]
    text = markdown.render(fold(manifest(), events), "reports/x")
    assert text.startswith("# moeguard: clean\n\n1 finding (1 known) in 2 executions of 1 case (1 more was refused) on 1 cell.\n")
    for words in ("| mine | bf16 | sm90 | 2 | 2 | 1 | 1 | accuracy, memory |", "### mismatch (known)", "torch 2.8.0",
                  r"Row 3 | column 4 is \<b\>wrong\</b\> \`x\`.", r"| mine | bf16 | case | needs a\|b | 1 |",
                  "further from the high-precision reference than rounding can explain.", "| device | cuda sm90 NVIDIA H200 |",
                  "\n\nmax |z|: 18 at row 3, column 4; limit \u03c4 of |z|: 5.5\n\n",
                  "1 min 15 s",
                  f"    moeguard replay reports/x/cases/{value.case.fingerprint}.json --backend mine\n"):
        assert words in text


def test_a_summary_on_a_cpu_names_the_device_once() -> None:
    given = manifest(device="cpu")
    given["environment"] |= {"arch": "cpu", "gpu": None}
    assert "| device | cpu |" in markdown.render(fold(given, scenario(0)), "r")


def test_a_tactic_is_not_forced_on_the_cases_that_must_run_before() -> None:
    first, value = case(seed=1), finding("crash", tactic="split")
    assert command(value, "r").endswith("--backend mine --tactic split")
    before = {"predecessors": [{"backend": "mine", "case": first.model_dump(mode="json", by_alias=True)}]}
    after = command(value.model_copy(update={"numbers": before}), "r")
    assert after.endswith(f"--backend mine --after r/cases/{first.fingerprint}.json")


def test_a_replay_names_no_profile_and_no_seed() -> None:
    given = manifest(cases=[{}], budget=None, profile="soak", seed=12345) | {"command": "replay"}
    events = scenario(0)
    outcome = fold(given, events)
    assert "| command | replay |" in markdown.render(outcome, "r")
    for text in (markdown.render(outcome, "r"), junit.render(outcome, "r"), html.render(outcome, events, "r")):
        assert "12345" not in text
        assert "soak" not in text


def test_the_readme_explains_every_kind_as_the_reports_do() -> None:
    text = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    for kind, meaning in glossary.KINDS.items():
        assert f"| `{kind}` | {meaning} |" in text


def test_importing_the_outcome_is_cheap() -> None:
    code = ("import sys; import moeguard.report.outcome, moeguard.report.junit, moeguard.report.markdown, "
            "moeguard.report.writer; print(sorted({'pandas', 'matplotlib', 'jinja2', 'torch'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
