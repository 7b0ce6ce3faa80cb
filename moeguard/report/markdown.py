"""The Markdown summary of a run, short enough for a merge request."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from moeguard.core.finding import Finding
from moeguard.report import coverage, glossary, known, numbers, sweep
from moeguard.report.outcome import Outcome
from moeguard.report.text import count, duration, line, number, printable, yes_no

_SPECIAL = re.compile(r"([\\`*{}\[\]<>~]|(?<!\w)_|_(?!\w))")


def render(outcome: Outcome, run_dir: str) -> str:
    """The Markdown text: verdict, what ran, cells, tactics of a sweep, findings with replay commands, what was not verified."""
    parts = [f"# moeguard: {outcome.verdict}", escape(outcome.sentence), _ran(outcome), _cells(outcome)]
    if outcome.tactics is not None:
        header, rows = sweep.table(outcome.tactics)
        parts.append("## Tactics\n\n" + (_table(header, rows) if rows else "None was run."))
    if outcome.findings:
        parts.append("## Findings")
        parts += [_finding(outcome, finding, run_dir) for finding in outcome.findings]
    if outcome.standing.entries:
        parts.append("## Ledger of known findings\n\n" + _table(
            known.HEADER, known.rows(outcome.standing, outcome.findings), right=(5,)))
    chosen = coverage.tuned_rows(outcome.cells)
    if chosen:
        parts.append("## What autotuning chose\n\n" + _table(("backend", "recipe", "tokens from", "tactics"), chosen, right=(2,)))
    parts.append(_not_verified(outcome))
    return "\n\n".join(parts) + "\n"


def escape(text: object) -> str:
    """Text on one line that Markdown shows as it is, outside of a table."""
    return _SPECIAL.sub(r"\\\1", line(text))


def _ran(outcome: Outcome) -> str:
    manifest, options = outcome.manifest, outcome.settings
    environment = manifest.get("environment", {})
    budget = options.get("budget")
    rows = [
        ("run", f"{manifest.get('run_id')}, started {manifest.get('started')}"),
        ("command", str(manifest.get("command")) + drawn(options)
                    + (f", budget {duration(budget)}" if budget is not None else "")
                    + (f", at most {count(options['max_cases'], 'case')}" if options.get("max_cases") else "")),
        ("duration", duration(outcome.seconds)),
        ("device", " ".join(dict.fromkeys(str(part) for part in (options.get("device"), environment.get("arch"),
                                                                 environment.get("gpu")) if part))),
        ("versions", versions(environment)),
    ]
    if outcome.flatness.workers:
        rows.append(("cost and memory", outcome.flatness.sentence))
    return "## What ran\n\n" + _table(("", ""), rows)


def drawn(options: dict[str, Any]) -> str:
    """``, profile P, seed S``; empty where the cases were given."""
    return "".join(f", {name} {options[name]}" for name in ("profile", "seed") if options.get(name) is not None)


def versions(environment: dict[str, Any]) -> str:
    """Python, CUDA, driver and the installed packages with their versions, on one line."""
    found = {"python": environment.get("python"), "cuda": environment.get("cuda"), "driver": environment.get("driver"),
             **environment.get("packages", {})}
    return ", ".join(f"{name} {value}" for name, value in found.items() if value)


def _cells(outcome: Outcome) -> str:
    rows = [(cell["backend"], cell["recipe"], cell["arch"], number(cell["executions"]), number(cell["cases"]),
             number(cell["refused"]), number(len(cell["findings"])),
             ", ".join(cell["checks"]) or f"none: {cell['reason']}")
            for cell in outcome.cells]
    header = ("backend", "recipe", "arch", "executions", "cases", "refused", "findings", "checks")
    return "## Cells\n\n" + (_table(header, rows, right=range(3, 7)) if rows else "None.")


def _finding(outcome: Outcome, finding: Finding, run_dir: str) -> str:
    mark = " (known)" if finding.known else ""
    tactic = "default tactic" if finding.tactic is None else f"tactic {escape(finding.tactic)}"
    facts = (f"{escape(finding.backend)}, {finding.recipe}, {tactic}, check {escape(finding.check)}; fingerprint "
             f"{finding.fingerprint}; seen {count(outcome.hits[finding.fingerprint], 'time')}; "
             f"reproduced: {yes_no(finding.reproduced)}")
    command = printable(outcome.replay(finding, run_dir)).replace("\n", "\n    ")
    paragraphs = [f"### {escape(finding.kind)}{mark}", escape(known.sentence(outcome.standing, finding)),
                  escape(glossary.KINDS[finding.kind]), escape(finding.sentence),
                  escape(numbers.brief(finding.numbers)), facts, f"    {command}"]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _not_verified(outcome: Outcome) -> str:
    rows = [(note["backend"], note["recipe"], note["what"], note["reason"], number(note["count"]))
            for note in outcome.not_verified]
    header = ("backend", "recipe", "what", "why", "times")
    reasons = "\n".join(f"- {escape(reason)}" for reason in outcome.reasons()) or "No reason is noted."
    return "## Not verified\n\n" + (_table(header, rows, right=(4,)) if rows else reasons)


def _table(header: Iterable[str], rows: Iterable[Iterable[object]], right: Iterable[int] = ()) -> str:
    names, right = list(header), set(right)
    rule = ["---:" if column in right else "---" for column in range(len(names))]
    lines = [names, rule, *([escape(value).replace("|", r"\|") for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
