"""Cells: one campaign for each backend and recipe, run by the first test that asks, and what it says to each group."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moeguard.backends import registry
from moeguard.core.events import Event, Executed, Found
from moeguard.core.finding import MEMORY_KINDS, Finding
from moeguard.engine.campaign import Campaign
from moeguard.engine.rundir import RunDirectory
from moeguard.engine.samples import refusal
from moeguard.plugin.settings import Settings
from moeguard.report import known
from moeguard.report.outcome import Outcome, fold
from moeguard.report.text import count, number
from moeguard.report.writer import write, write_all

#: What a note is about, by the group that it explains.
NOTES = {"tactics": "tactics", "tuned": "autotuning"}
ABSENT = {
    "contract": "no drawn case has what the backend declares as unsupported",
    "tactics": "the backend offers none", "tuned": "the backend has no tuning of its own, or kept the default",
    "layout": "the backend names no weight layout of another release",
    "tuner": "the backend tells nothing about the state of its tuner",
}


@dataclass(frozen=True, slots=True)
class Result:
    """The campaign of one cell. executions, found: by group of checks. failure: set when the guard itself failed."""

    outcome: Outcome
    directory: Path
    executions: Counter[str]
    found: dict[str, set[str]]

    @property
    def refusal(self) -> str | None:
        """Why nothing can be launched: the backend cannot run here, or declines the recipe altogether; None otherwise.

        A backend that takes a sample of the recipe but none of the drawn cases is no refusal: its checks were not executed.
        """
        (cell,) = self.outcome.cells
        if cell["status"] != "refused":
            return None
        if not self.outcome.cases:
            return str(cell["reason"])
        return _declined(str(cell["backend"]), str(cell["recipe"]))

    @property
    def emptiness(self) -> str | None:
        """Why nothing was executed; None when something was."""
        if self.outcome.executions:
            return None
        (cell,) = self.outcome.cells
        reason = str(cell["reason"] or self.outcome.sentence)
        if cell["status"] != "refused":
            return reason
        return f"the backend takes the recipe, but all of {count(self.outcome.cases, 'drawn case')} were refused: {reason}"

    def findings(self, group: str, quarantined: Collection[str] = ()) -> list[Finding]:
        """Failing findings that the group saw, as the campaign shrank them, but those about ``quarantined`` tactics."""
        return [one for one in self.outcome.failing
                if one.fingerprint in self.found.get(group, ()) and one.tactic not in quarantined]

    def known(self, group: str) -> list[Finding]:
        """Findings that the group saw and that the ledger covers."""
        return [one for one in self.outcome.findings if one.known and one.fingerprint in self.found.get(group, ())]

    def absence(self, group: str) -> str | None:
        """Why the group executed nothing; None when it did execute or find something."""
        if self.executions[group] or self.found.get(group):
            return None
        reasons = [note["reason"] for note in self.outcome.not_verified if note["what"] == NOTES.get(group, group)]
        return "; ".join(dict.fromkeys(reasons)) or ABSENT.get(group, "no drawn case led to it")

    def describe(self, finding: Finding) -> str:
        """Everything that a reader needs: sentence, numbers, case, and the command that shows it again."""
        where = str(self.directory)
        numbers = "\n".join(f"  {name}: {number(value) if not isinstance(value, dict | list) else json.dumps(value)}"
                            for name, value in finding.numbers.items())
        tactic = "" if finding.tactic is None else f", tactic {finding.tactic}"
        reproduced = {True: "yes", False: "no", None: "not tried"}[finding.reproduced]
        entry = known.sentence(self.outcome.standing, finding)
        return (f"{finding.kind}: {finding.backend}, {finding.recipe}{tactic}\n{finding.sentence}\n"
                + (f"{entry}\n" if entry else "")
                + f"seen {count(self.outcome.hits[finding.fingerprint], 'time')}, reproduced: {reproduced}\n"
                f"numbers:\n{numbers or '  none'}\n"
                f"case: {where}/cases/{finding.case.fingerprint}.json\n{finding.case.to_json(indent=None)}\n"
                f"replay: {self.outcome.replay(finding, where)}")


class Cells:
    """Campaigns of this process by backend and recipe. A campaign that fails, fails once and is not tried again."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config, self._settings = config, settings
        self._results: dict[tuple[str, str], Result | Exception] = {}

    def get(self, backend: str, recipe: str) -> Result:
        """The result, from a campaign that runs now if it did not before; KeyboardInterrupt when it is interrupted."""
        key = backend, recipe
        if key not in self._results:
            try:
                self._results[key] = self._run(backend, recipe)
            except Exception as error:
                self._results[key] = error
        result = self._results[key]
        if isinstance(result, Exception):
            raise result
        return result

    def _run(self, backend: str, recipe: str) -> Result:
        place = self._place(f"{backend}-{recipe}")
        directory = RunDirectory.create(place, "pytest", self._settings.options(backend, recipe))
        events = Campaign(directory).run()
        outcome = self._write(directory, events)
        if outcome.interrupted:
            raise KeyboardInterrupt
        return Result(outcome, directory.path, *_by_group(events))

    def _write(self, directory: RunDirectory, events: list[Event]) -> Outcome:
        """The outcome, with every report below ``--moeguard-out``, else with the cases of findings alone."""
        if self._settings.out is not None:
            return write_all(directory.path, directory.manifest, events)
        outcome = fold(directory.manifest, events)
        for finding in outcome.findings:
            write(directory.path / "cases" / f"{finding.case.fingerprint}.json", finding.case.to_json() + "\n")
        return outcome

    def _place(self, name: str) -> Path:
        """A folder that holds nothing: below ``--moeguard-out``, else in pytest's cache, else a temporary one."""
        if self._settings.out is not None:
            place = self._settings.out / name
            worker = os.environ.get("PYTEST_XDIST_WORKER", "again")
            return place if not place.exists() else place.with_name(f"{name}-{worker}")
        cache = getattr(self._config, "cache", None)
        if cache is None:
            return Path(tempfile.mkdtemp(prefix=f"moeguard-{name}-"))
        place = Path(cache.mkdir("moeguard")) / f"{name}{self._suffix()}"
        shutil.rmtree(place, ignore_errors=True)
        return place

    def _suffix(self) -> str:
        """Workers share the cache; only a distribution that repeats a cell needs folders of their own."""
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        grouped = self._config.getoption("dist", "no") in ("no", "load", "loadscope", "loadfile", "loadgroup")
        return f"-{worker}" if worker and not grouped else ""


def _by_group(events: list[Event]) -> tuple[Counter[str], dict[str, set[str]]]:
    from moeguard.checks.plan import GROUPS

    executions: Counter[str] = Counter()
    found: dict[str, set[str]] = {}
    for event in events:
        if isinstance(event, Executed):
            executions[event.check] += event.count
        elif isinstance(event, Found):
            finding = Finding.model_validate(event.finding)
            group = "memory" if finding.kind in MEMORY_KINDS else finding.check if finding.check in GROUPS else GROUPS[0]
            found.setdefault(group, set()).add(finding.fingerprint)
    return executions, found


def _declined(backend: str, recipe: str) -> str | None:
    """Why the backend declines every sample of the recipe, as ``moeguard doctor`` asks; None when it takes one."""
    try:
        return refusal(registry.get(backend), recipe)
    except Exception:  # no answer is no refusal: the campaign has journaled what supports() raised
        return None


def properties(result: Result, group: str) -> list[tuple[str, Any]]:
    """What JUnit tells about a group."""
    return [("executions", result.executions[group]), ("findings", len(result.findings(group))),
            *(("known", f"{one.kind}: {one.entry}") for one in result.known(group)),
            ("run_directory", str(result.directory))]
