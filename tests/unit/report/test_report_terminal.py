"""The result that people see on the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_events import finding, manifest, refused, scenario

from moeguard.cli.campaign import show
from moeguard.core.events import Event, RunFinished
from moeguard.engine.rundir import RunDirectory
from moeguard.report.glossary import KINDS
from moeguard.report.outcome import fold


def shown(events: list[Event], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    given = manifest(backends=["mine"], recipes=["bf16"])
    show(fold(given, [*events, RunFinished(seconds=1.0)]), RunDirectory(Path("x"), given))
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
