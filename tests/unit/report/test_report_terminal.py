"""The result that people see on the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_events import finding, manifest, refused, scenario

from moeguard.cli.campaign import show
from moeguard.core.events import Event, Noted, RunFinished
from moeguard.engine.rundir import RunDirectory
from moeguard.report import html, markdown
from moeguard.report.glossary import KINDS
from moeguard.report.outcome import fold


def shown(events: list[Event], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *,
          interrupted: bool = False, backends: tuple[str, ...] = ("mine",)) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    given = manifest(backends=list(backends), recipes=["bf16", "fp16"][: len(backends)])
    show(fold(given, [*events, RunFinished(seconds=1.0, interrupted=interrupted)]), RunDirectory(Path("x y"), given))
    return capsys.readouterr().out


def test_refused_cases_and_the_meaning_of_a_finding(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown([*scenario(0, findings=[finding()]), *refused(1)], capsys, monkeypatch)
    rows = [row.split() for row in text.splitlines()[:2]]
    assert rows == [["backend", "recipe", "cases", "refused", "executions", "findings"], ["mine", "bf16", "2", "1", "2", "1"]]
    assert KINDS["mismatch"] in text
    assert "findings: 1 finding in 2 executions of 1 case (1 more was refused) on 1 cell.\n" in text


def test_inconclusive_says_why(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown([*refused(0), *refused(1, reason="[odd] sizes")], capsys, monkeypatch)
    assert "inconclusive: Nothing was executed, so nothing was verified. 2 cases were refused.\n" in text
    assert "  mine bf16: case: [odd] sizes\n  mine bf16: case: needs sm100\n" in text


def test_a_backend_that_cannot_run_is_a_line_and_no_row(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    away = Noted(scenario=-1, backend="away", recipe="", what="backend", reason="needs [sm100]")
    text = shown([away, *scenario(0)], capsys, monkeypatch, backends=("away", "mine"))
    assert text.splitlines()[:4] == [
        "backend  recipe  cases  refused  executions  findings", "mine     bf16        1        0           2         0",
        "mine     fp16        0        0           0         0", "not run: away: needs [sm100]"]
    assert "clean: No findings" in text
    alone = shown([away], capsys, monkeypatch, backends=("away",))
    assert alone.splitlines()[:3] == ["not run: away: needs [sm100]", "",
                                      "inconclusive: Nothing was executed, so nothing was verified."]
    assert alone.count("sm100") == 1


def test_an_interrupted_run_says_how_to_go_on_and_the_same_reason_everywhere(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown([], capsys, monkeypatch, interrupted=True)
    assert text.endswith("resume: moeguard run --resume 'x y'\n")
    reason = "mine bf16: the run was stopped before a scenario was drawn for it"
    assert f"  {reason}\n" in text
    outcome = fold(manifest(backends=["mine"], recipes=["bf16"]), [RunFinished(seconds=0.0, interrupted=True)])
    assert f"## Not verified\n\n- {reason}\n" in markdown.render(outcome, "x")
    assert f"<p>{reason}</p>" in html.render(outcome, [], "x")
    assert "resume:" not in shown(scenario(0), capsys, monkeypatch)
