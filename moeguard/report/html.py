"""The HTML page of a run: one self-contained file, for a screen or for print."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from moeguard.core.events import Event
from moeguard.core.finding import Finding
from moeguard.report import coverage, flatness, frames, glossary, known, numbers, placemap, plots, sweep
from moeguard.report.markdown import drawn, versions
from moeguard.report.outcome import Outcome
from moeguard.report.text import count, duration, line, number, printable, yes_no

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped,unused-ignore]

VERDICTS = {"clean": "Clean", "findings": "Findings", "inconclusive": "Inconclusive"}
#: z/tau beyond which the size of an error says nothing any more.
MOST_WORST = 1e6
_MACHINE = ("device", "arch", "gpu", "driver", "cuda", "platform", "machine", "python", "cpus")


def render(outcome: Outcome, events: Iterable[Event], run_dir: str, frame: pd.DataFrame | None = None) -> str:
    """The page as text. run_dir: the run directory as the reader can reach it, for the replay commands. frame: the
    executions of the events, where the caller has them already.

    All text of the run is escaped; nothing is loaded from elsewhere and nothing is scripted.
    """
    events = list(events)
    frame = frames.executions(events) if frame is None else frame
    buckets, tokens = coverage.token_table(outcome.cells)
    return _template().render(
        outcome=outcome,
        verdict=VERDICTS[outcome.verdict],
        facts=_facts(outcome),
        setting=_setting(outcome),
        ran=_ran(outcome),
        checks=sorted({check for cell in outcome.cells for check in cell["checks"]}),
        cells=[_cell(outcome, cell, frame)
               for cell in sorted(outcome.cells, key=lambda one: one["status"] != "executed")],
        sweep=sweep.table(outcome.tactics) if outcome.tactics else None,
        findings=[_finding(outcome, finding, run_dir) for finding in outcome.findings],
        ledger=known.rows(outcome.standing, outcome.findings),
        ledger_header=known.HEADER,
        errors=plots.errors(frame),
        token_plot=plots.tokens(frame),
        buckets=buckets,
        tokens=tokens,
        tactics=coverage.tactic_table(events),
        tuned=coverage.tuned_rows(outcome.cells),
        axes=coverage.strata(events),
        flatness=outcome.flatness if outcome.flatness.workers else None,
        flatness_header=flatness.HEADER,
        usage_plot=plots.usage(outcome.flatness),
        outcomes=_outcomes(outcome),
        glossary={
            "Words": glossary.WORDS,
            "Outcomes of an execution": glossary.OUTCOMES,
            "Numbers": glossary.NUMBERS,
        },
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                              finalize=lambda value: printable(value) if isinstance(value, str)
                              and not isinstance(value, Markup) else value)
    environment.filters |= {"number": number, "duration": duration, "yes_no": yes_no, "line": line,
                            "largest": lambda row: max(row.values(), default=0)}
    environment.globals["count"] = count
    source = files("moeguard.report").joinpath("template.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source)


def _facts(outcome: Outcome) -> list[tuple[str, str]]:
    covered = sum(finding.known for finding in outcome.findings)
    return [
        ("executions", number(outcome.executions)),
        ("cases", number(outcome.cases) + (f" ({number(outcome.refused)} refused)" if outcome.refused else "")),
        ("cells executed", f"{sum(cell['executions'] > 0 for cell in outcome.cells)} of {len(outcome.cells)}"),
        ("findings", number(len(outcome.findings)) + (f" ({covered} known)" if covered else "")),
        ("not verified", number(len(outcome.not_verified))),
        ("duration", duration(outcome.seconds)),
    ]


def _setting(outcome: Outcome) -> str:
    """Where the run was made and with what, on one line."""
    environment = outcome.manifest.get("environment", {})
    place = [part for part in (environment.get("gpu"), environment.get("arch"), environment.get("platform")) if part]
    return " \u00b7 ".join(part for part in (", ".join(place), versions(environment),
                                           drawn(outcome.settings).removeprefix(", ")) if part)


def _ran(outcome: Outcome) -> dict[str, list[tuple[str, str | None]]]:
    """Tables of the section "what ran": title to rows of name and value, None where there is no value."""
    manifest, options = outcome.manifest, outcome.settings
    if options.get("cases"):
        options["cases"] = f"{len(options['cases'])} given"
    environment = manifest.get("environment", {})
    shown = {name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in options.items()}
    budget = shown.pop("budget", None)
    run = {"run": manifest.get("run_id"), "command": manifest.get("command"), "started": manifest.get("started"),
           "budget": None if budget is None else duration(float(budget)),
           **{name.replace("_", " "): value for name, value in shown.items()}}
    machine = {name: environment.get(name) for name in _MACHINE}
    packages = {"moeguard": manifest.get("moeguard"), **environment.get("packages", {})}
    return {title: [(name, None if value in (None, "") else str(value)) for name, value in rows.items()]
            for title, rows in (("Run", run), ("Machine", machine), ("Packages", packages))}


def _cell(outcome: Outcome, cell: dict[str, Any], frame: pd.DataFrame) -> dict[str, Any]:
    mine = frame[(frame["backend"] == cell["backend"]) & (frame["recipe"] == cell["recipe"])]
    worst = (mine["max_z"] / mine["tau"]).max()
    failing = {finding.fingerprint for finding in outcome.failing}
    by_check = {check: [finding for finding in outcome.findings
                        if (finding.backend, finding.recipe, finding.check) == (cell["backend"], cell["recipe"], check)]
                for check in cell["checks"]}
    reasons = {check: "; ".join(line(note["reason"]) for note in outcome.not_verified
                                if note["what"] == check and note["backend"] == cell["backend"]
                                and note["recipe"] in (cell["recipe"], ""))
               for one in outcome.cells for check in one["checks"]}
    return cell | {
        "worst": None if math.isnan(worst) else float(f"{worst:.3g}"),
        "worst_text": "> 1e6" if worst > MOST_WORST else number(None if math.isnan(worst) else float(f"{worst:.3g}")),
        "by_check": by_check,
        "failing": {check: any(one.fingerprint in failing for one in found) for check, found in by_check.items()},
        "reasons": reasons,
    }


def _finding(outcome: Outcome, finding: Finding, run_dir: str) -> dict[str, Any]:
    return {
        "value": finding,
        "meaning": glossary.KINDS[finding.kind],
        "entry": known.sentence(outcome.standing, finding),
        "hits": outcome.hits[finding.fingerprint],
        "fails": finding in outcome.failing,
        "replay": outcome.replay(finding, run_dir),
        "shape": finding.case.shape,
        "case": json.dumps(finding.case.model_dump(mode="json", by_alias=True), indent=2, ensure_ascii=False),
        "numbers": numbers.labelled(finding.numbers),
        "map": placemap.svg(finding.numbers.get("map")),
        "map_meaning": str((finding.numbers.get("map") or {}).get("meaning", "")),
    }


def _outcomes(outcome: Outcome) -> dict[str, int]:
    names = sorted({name for cell in outcome.cells for name in cell["outcomes"]})
    return {name: sum(cell["outcomes"].get(name, 0) for cell in outcome.cells) for name in names}
