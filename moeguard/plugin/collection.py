"""Collection: a test for each backend, recipe and group of checks, also where no test file is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moeguard.backends import registry
from moeguard.checks.plan import GROUPS
from moeguard.plugin.cells import Cells, Result, properties
from moeguard.plugin.settings import Settings, settings
from moeguard.report.text import count

PREFIX = "moeguard"


class Failure(Exception):
    """A test of moeguard failed; the text is the report."""


class Node(pytest.Collector):
    """An inner node: all of moeguard, a backend, or a recipe of a backend."""

    def collect(self) -> Iterator[pytest.Item]:
        """Nothing: items are made by Collection, in the order of backends, recipes and groups."""
        return iter(())


class Check(pytest.Item):
    """One group of checks of one backend and recipe."""

    def __init__(self, *, backend: str, recipe: str, cells: Cells, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.backend, self.recipe, self.cells = backend, recipe, cells
        self.add_marker(pytest.mark.moeguard)
        self.add_marker(pytest.mark.xdist_group(f"{PREFIX}::{backend}::{recipe}"))

    def setup(self) -> None:
        """Skip a backend that cannot run here."""
        availability = registry.get(self.backend).availability()
        if not availability.available:
            pytest.skip(f"{self.backend}: {availability.reason or 'not available'}")

    def runtest(self) -> None:
        """Run the campaign of the cell, or take its result, and judge this group by it."""
        result = self.cells.get(self.backend, self.recipe)
        self.user_properties += properties(result, self.name)
        executions, cases = count(result.executions[self.name], "execution"), count(result.outcome.cases, "case")
        self.add_report_section("call", "moeguard", f"{executions}; {cases} drawn for the cell; {result.directory}")
        for finding in result.known(self.name):
            self.add_report_section("call", "moeguard known finding", result.describe(finding))
        findings = result.findings(self.name)
        if findings:
            raise Failure("\n\n".join(result.describe(finding) for finding in findings))
        self._executed(result)

    def _executed(self, result: Result) -> None:
        if result.refusal is not None:
            pytest.skip(f"{self.backend} {self.recipe}: {result.refusal}")
        if result.emptiness is not None:
            raise Failure(f"{self.backend} {self.recipe} executed no check: {result.emptiness}")
        reason = result.absence(self.name)
        if reason is not None:
            pytest.skip(f"{self.name}: {reason}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The report of a finding without a traceback; anything else as pytest shows it."""
        if isinstance(excinfo.value, Failure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path | str, int | None, str]:
        """Where pytest says that the test is."""
        return PREFIX, None, f"{self.backend}::{self.recipe}::{self.name}"


class Collection:
    """Hooks that only ``--moeguard`` needs. Raises pytest.UsageError on wrong options."""

    def __init__(self, config: pytest.Config) -> None:
        chosen = [argument for argument in config.args if argument.partition("::")[0] == PREFIX and "::" in argument]
        self._chosen = tuple(chosen)
        config.args[:] = [argument for argument in config.args if argument not in chosen]
        self._settings: Settings = settings(config)
        self._cells = Cells(config, self._settings)
        out = self._settings.out
        if out is not None and not hasattr(config, "workerinput"):
            _empty(out)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the tests before ``-k`` and ``-m`` choose."""
        items.extend(self._checks(session))

    def pytest_report_header(self) -> str:
        """Say what will be run."""
        one = self._settings
        cells = f"{count(len(one.backends), 'backend')} x {count(len(one.recipes), 'recipe')}"
        return (f"moeguard: profile {one.profile}, {one.budget:g} s for each of {cells}, seed {one.seed}, "
                f"device {one.device}")

    def _checks(self, session: pytest.Session) -> Iterator[pytest.Item]:
        top = Node.from_parent(session, name=PREFIX, nodeid=PREFIX)
        for backend in self._settings.backends:
            outer = Node.from_parent(top, name=backend)
            for recipe in self._settings.recipes:
                inner = Node.from_parent(outer, name=recipe)
                for group in GROUPS:
                    item = Check.from_parent(inner, name=group, backend=backend, recipe=recipe, cells=self._cells)
                    if not self._chosen or any(f"{item.nodeid}::".startswith(f"{one}::") for one in self._chosen):
                        yield item


def _empty(out: Path) -> None:
    """Make the folder. Raises pytest.UsageError when it holds something or cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = any(out.iterdir())
    except OSError as error:
        raise pytest.UsageError(f"--moeguard-out: {out} cannot be written ({error.strerror})") from None
    if held:
        raise pytest.UsageError(f"--moeguard-out: {out} holds other files; allowed: a new or empty folder")
