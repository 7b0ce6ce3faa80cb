"""Collection: a test for each backend, recipe and group of checks, also where no test file is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moeguard.backends import registry
from moeguard.checks.plan import GROUPS
from moeguard.core.errors import OWN_BACKEND, UnknownNameError
from moeguard.plugin.allowance import Allowance
from moeguard.plugin.cells import Cells, Result, properties
from moeguard.plugin.settings import Settings, settings, worded
from moeguard.report.text import count

PREFIX = "moeguard"


class Failure(Exception):
    """A test of moeguard failed; the text is the report."""


class Node(pytest.Collector):
    """An inner node: all of moeguard, a backend, or a recipe of a backend. below: what it holds."""

    def __init__(self, *, below: Callable[[Node], Iterator[pytest.Item | pytest.Collector]], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._below = below

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """What it holds, in the order of backends, recipes and groups."""
        return self._below(self)


class Check(pytest.Item):
    """One group of checks of one backend and recipe."""

    def __init__(self, *, backend: str, recipe: str, cells: Cells, allowance: Allowance | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.backend, self.recipe, self.cells, self.allowance = backend, recipe, cells, allowance
        self.add_marker(pytest.mark.moeguard)
        self.add_marker(pytest.mark.xdist_group(f"{PREFIX}::{backend}::{recipe}"))

    def setup(self) -> None:
        """Skip a backend that cannot run here."""
        if self.allowance is not None:
            self.user_properties.append(("allowlist", "on" if self.allowance.on else "off"))
        if self.allowance is None or not self.allowance.on:
            self._available()

    def _available(self) -> None:
        availability = registry.get(self.backend).availability()
        if not availability.available:
            self._skip(f"{self.backend}: {availability.reason or 'not available'}")

    def _skip(self, reason: str) -> None:
        """Skip, unless the allowlist has the cell on, which nothing then shows to be right."""
        if self.allowance is not None and self.allowance.on:
            raise Failure(f"{reason}; the allowlist has {self.backend} with {self.recipe} on here, so it must run")
        pytest.skip(reason)

    def runtest(self) -> None:
        """Judge this group; a failure of a cell that the allowlist has not on is an expected one."""
        try:
            self._judge()
        except Failure as failure:
            if self.allowance is None or self.allowance.on:
                raise
            self.add_report_section("call", "moeguard not allowed", str(failure))
            pytest.xfail(f"not allowed here, {self.allowance.reason}: {str(failure).splitlines()[0]}")

    def _judge(self) -> None:
        """Run the campaign of the cell, or take its result, and judge this group by it."""
        self._available()
        quarantined = () if self.allowance is None else self.allowance.quarantined
        result = self.cells.get(self.backend, self.recipe)
        self.user_properties += properties(result, self.name)
        executions, cases = count(result.executions[self.name], "execution"), count(result.outcome.cases, "case")
        self.add_report_section("call", "moeguard", f"{executions}; {cases} drawn for the cell; {result.directory}")
        for finding in result.known(self.name):
            self.add_report_section("call", "moeguard known finding", result.describe(finding))
        findings = result.findings(self.name, quarantined)
        for finding in result.findings(self.name):
            if finding not in findings:
                self.add_report_section("call", "moeguard quarantined tactic", result.describe(finding))
        if findings:
            raise Failure("\n\n".join(result.describe(finding) for finding in findings))
        self._executed(result)

    def _executed(self, result: Result) -> None:
        if result.refusal is not None:
            self._skip(f"{self.backend} {self.recipe}: {result.refusal}")
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
        config.args[:] = [argument for argument in config.args if argument not in chosen]
        self._settings: Settings = settings(config)
        self._chosen = tuple(tuple(part for part in one.split("::")[1:] if part) for one in chosen)
        for argument, parts in zip(chosen, self._chosen, strict=True):
            _known(argument, parts, self._settings)
        self._cells = Cells(config, self._settings)
        out = self._settings.out
        if out is not None and not hasattr(config, "workerinput"):
            _empty(out)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the tests before ``-k`` and ``-m`` choose."""
        items.extend(session.genitems(Node.from_parent(session, name=PREFIX, nodeid=PREFIX, below=self._backends)))

    def pytest_report_header(self) -> list[str]:
        """Say what will be run, as far as names and ids tell."""
        one = self._settings
        cells = sum(self._asked(backend, recipe) for backend in one.backends for recipe in one.recipes)
        which = f"each of {count(cells, 'cell')} (backend x recipe)" if cells != 1 else "1 cell (backend x recipe)"
        return [f"moeguard: profile {one.profile}, {one.budget:g} s for {which}, seed {one.seed}, device {one.device}",
                *self._allowed(cells),
                *(f"moeguard: {file.name} replaces the built-in backend {name!r}"
                  for name, file in registry.replaced(one.backends).items())]

    def _allowed(self, cells: int) -> list[str]:
        """How many of the cells the allowlist has on."""
        one = self._settings
        if one.allowances is None:
            return []
        on = sum(one.allowances.get(backend, recipe).on for backend in one.backends for recipe in one.recipes
                 if self._asked(backend, recipe))
        return [f"moeguard: {one.allowances.path.name} has {on} of {count(cells, 'cell')} on here; others cannot fail the run"]

    def _asked(self, *parts: str) -> bool:
        """Whether something at or below ``backend``, ``recipe``, ``group`` is asked for by an id; all is without one."""
        return not self._chosen or any(chosen[: len(parts)] == parts[: len(chosen)] for chosen in self._chosen)

    def _backends(self, top: Node) -> Iterator[Node]:
        for backend in self._settings.backends:
            if self._asked(backend):
                yield Node.from_parent(top, name=backend, below=partial(self._recipes, backend))

    def _recipes(self, backend: str, outer: Node) -> Iterator[Node]:
        for recipe in self._settings.recipes:
            if self._asked(backend, recipe):
                yield Node.from_parent(outer, name=recipe, below=partial(self._groups, backend, recipe))

    def _groups(self, backend: str, recipe: str, inner: Node) -> Iterator[Check]:
        allowances = self._settings.allowances
        allowance = None if allowances is None else allowances.get(backend, recipe)
        for group in GROUPS:
            if self._asked(backend, recipe, group):
                yield Check.from_parent(inner, name=group, backend=backend, recipe=recipe, cells=self._cells,
                                        allowance=allowance)


def _known(argument: str, parts: tuple[str, ...], chosen: Settings) -> None:
    """Raise pytest.UsageError when an id names what there is not."""
    levels = (("backend", chosen.backends), ("recipe", chosen.recipes), ("group", GROUPS))
    for part, (level, names) in zip(parts, levels, strict=False):
        if part not in names:
            hint = OWN_BACKEND if level == "backend" else ""
            raise pytest.UsageError(worded(UnknownNameError(f"{argument}: {level}", part, list(names), hint)))
    if len(parts) > len(levels):
        raise pytest.UsageError(f"{argument}: too long; allowed: {PREFIX}::backend::recipe::group")


def _empty(out: Path) -> None:
    """Make the folder. Raises pytest.UsageError when it holds something or cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = any(out.iterdir())
    except OSError as error:
        raise pytest.UsageError(f"--moeguard-out: {out} cannot be written ({error.strerror})") from None
    if held:
        raise pytest.UsageError(f"--moeguard-out: {out} holds other files; allowed: a new or empty folder")
