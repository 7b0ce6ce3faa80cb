"""What the documents show of ``tune-audit``, ``router`` and ``compare`` is what a reader gets; links lead somewhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import ROOT, Called
from documents import Shown, commands, missing, python

import moeguard as mg
from moeguard.fuzz.router_cases import draw_router_cases

DOCUMENTS = ("README.md", *(f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md"))))
AUDITS = [one for name in DOCUMENTS for one in commands(name, "moeguard tune-audit")]


@pytest.mark.parametrize("shown", AUDITS, ids=[one.command for one in AUDITS])
def test_an_audit(shown: Shown, cli: Callable[..., Called], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = cli(*shlex.split(shown.command)[1:])
    assert missing(shown.lines, done.out) is None
    assert done.code == any(line.startswith("warning: ") for line in shown.lines)
    assert sum(line.startswith("warning: ") for line in done.out.splitlines()) == sum(
        line.startswith("warning: ") for line in shown.lines) or "..." in shown.lines


COMPARISONS = [one for name in DOCUMENTS for one in commands(name, "moeguard compare")]
PLUGINS = {"rebound.py": "BatchedRebound", "missing.py": "KernelMissing"}


@pytest.mark.parametrize("shown", COMPARISONS, ids=[one.command for one in COMPARISONS])
def test_a_comparison(shown: Shown, cli: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    for file, kind in PLUGINS.items():
        text = f"import moeguard as mg\nfrom moeguard.mutants.broken_cutedsl import {kind}\n\nmg.register({kind}())\n"
        Path(file).write_text(text, encoding="utf-8")
    done = cli(*shlex.split(shown.command)[1:])
    lines = [re.sub(r"0\.\d\d$", "0...", line) for line in shown.lines]  # distances hang on the processor's sums
    assert missing(lines, done.out) is None, done.out
    assert done.code == ("--plugin" in shown.command)


def test_every_warning_is_in_the_table() -> None:
    source = (ROOT / "moeguard" / "autotune" / "audit.py").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "tuned-range.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r'Caution\("(\w+)"', source)) == set(table)


def test_every_requirement_is_in_the_table() -> None:
    from moeguard.gate.requirement import RULES

    table = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "gate.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(RULES) == set(table)


def test_every_method_and_probe_of_routers_is_in_a_table() -> None:
    from moeguard.core.router import METHODS, PROBES

    text = (ROOT / "docs" / "routing.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \|", text.split("## Methods")[1].split("## The margin")[0], re.MULTILINE)
    assert set(METHODS) | set(PROBES) == set(table) - {"range", "repeated", "set", "finite", "weights", "sum"}


def test_the_router_of_the_document_is_clean() -> None:
    names: dict[str, Any] = {}
    exec(python("docs/routing.md", "class MyRouter"), names)
    verdicts = [mg.check_router(names["MyRouter"](), case) for case in draw_router_cases(14, 0, ("renormalize", "softmax_topk"))]
    assert [verdict.passed for verdict in verdicts] == [verdict.unsupported is None for verdict in verdicts]
    assert sum(verdict.passed for verdict in verdicts) == 7


def test_the_routers_of_the_document_are_clean(cli: Callable[..., Called]) -> None:
    (shown,) = commands("docs/routing.md", "moeguard router")
    done = cli(*shlex.split(shown.command)[1:])
    assert missing(shown.lines, done.out) is None


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text(encoding="utf-8")):
        assert "://" in target or ((ROOT / name).parent / target).exists(), target
