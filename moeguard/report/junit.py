"""JUnit XML of a run: one test case for each cell and check, for any CI that shows test results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from moeguard.core.finding import Finding
from moeguard.report import known
from moeguard.report.outcome import Outcome
from moeguard.report.text import count, line, printable, yes_no

#: Name of the test case of a cell that executed no check.
NOTHING_EXECUTED = "execution"


def render(outcome: Outcome, run_dir: str) -> str:
    """The XML text, with declaration.

    A check with findings that fail the run is a failure; one with known findings only is skipped, as an expected
    failure is; a cell that cannot run here is skipped with its reason; any other cell that executed no check is an
    error.
    """
    cases = [case for cell in outcome.cells for case in _cell(outcome, cell, run_dir)]
    totals = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": sum(case.find("error") is not None for case in cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    seconds = math.fsum(float(case.get("time", "0")) for case in cases)
    attributes = {"name": "moeguard", **{name: str(total) for name, total in totals.items()}, "time": f"{seconds:.3f}"}
    root = ElementTree.Element("testsuites", attributes)
    started = line(outcome.manifest.get("started", ""))
    suite = ElementTree.SubElement(root, "testsuite", attributes | ({"timestamp": started} if started else {}))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(outcome):
        if value is not None:
            ElementTree.SubElement(properties, "property", {"name": line(name), "value": line(value)})
    suite.extend(cases)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _properties(outcome: Outcome) -> Iterator[tuple[str, Any]]:
    yield "verdict", outcome.verdict
    for name in ("run_id", "moeguard", "command"):
        yield name, outcome.manifest.get(name)
    options = outcome.settings
    for name in ("profile", "seed", "device", "budget", "max_cases", "strict"):
        yield name, options.get(name)
    environment = outcome.manifest.get("environment", {})
    for name in ("arch", "gpu", "cuda", "driver", "python", "platform"):
        yield name, environment.get(name)
    if outcome.standing.entries:
        yield "ledger", outcome.standing.source
        yield "ledger_sha256", outcome.standing.sha256
    yield from sorted((f"package {name}", value) for name, value in environment.get("packages", {}).items())


def _cell(outcome: Outcome, cell: dict[str, Any], run_dir: str) -> Iterator[ElementTree.Element]:
    backend, recipe = cell["backend"], cell["recipe"]
    if not cell["checks"]:
        case = _case(backend, recipe, NOTHING_EXECUTED, 0.0)
        if cell["status"] == "refused":
            ElementTree.SubElement(case, "skipped", {"message": cell["reason"]})
        else:
            ElementTree.SubElement(case, "error", {"message": f"no check was executed: {cell['reason']}",
                                                   "type": "not_executed"})
        yield case
        return
    for check, evidence in cell["checks"].items():
        case = _case(backend, recipe, check, evidence["seconds"])
        found = [finding for finding in outcome.findings
                 if (finding.backend, finding.recipe, finding.check) == (backend, recipe, check)]
        failing = [finding for finding in found if finding in outcome.failing]
        if failing:
            failure = ElementTree.SubElement(case, "failure", {"message": _headline(failing), "type": failing[0].kind})
            failure.text = "\n\n".join(_proof(outcome, finding, run_dir) for finding in failing)
        elif found:
            skipped = ElementTree.SubElement(case, "skipped", {"message": f"known: {_headline(found)}",
                                                               "type": "moeguard.known"})
            skipped.text = "\n\n".join(_proof(outcome, finding, run_dir) for finding in found)
        yield case


def _case(backend: str, recipe: str, check: str, seconds: float) -> ElementTree.Element:
    return ElementTree.Element("testcase", {
        "classname": line(f"moeguard.{backend}.{recipe}"),
        "name": line(f"moeguard::{backend}::{recipe}::{check}"),
        "time": f"{seconds:.3f}",
    })


def _headline(findings: list[Finding]) -> str:
    first = f"{findings[0].kind}: {line(findings[0].sentence)}"
    return first if len(findings) == 1 else f"{first} (and {len(findings) - 1} more)"


def _proof(outcome: Outcome, finding: Finding, run_dir: str) -> str:
    entry = known.sentence(outcome.standing, finding)
    return printable("\n".join([
        f"{finding.kind}: {finding.sentence}",
        *([entry] if entry else []),
        f"fingerprint: {finding.fingerprint}",
        f"tactic: {'default' if finding.tactic is None else finding.tactic}",
        f"seen: {count(outcome.hits[finding.fingerprint], 'time')}; reproduced: {yes_no(finding.reproduced)}",
        f"replay: {outcome.replay(finding, run_dir)}",
    ]))
