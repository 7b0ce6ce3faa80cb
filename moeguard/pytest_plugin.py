"""The pytest plug-in: options and hooks. Nothing but pytest is imported unless a test run asks for moeguard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from moeguard.backends.protocol import Backend
    from moeguard.core.case import Case

MARKER = ("moeguard(backends=None, recipes=None, profile='smoke', max_cases=20, seed=0): cases and backends for a test "
          "that takes moeguard_case, moeguard_backend or both; also on every test that --moeguard collects")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of contract and documentation."""
    group = parser.getgroup("moeguard", "moeguard: checks of Mixture-of-Experts kernels")
    group.addoption("--moeguard", action="store_true",
                    help="Collect a test for each backend, recipe and group of checks.")
    group.addoption("--moeguard-backend", action="append", metavar="NAME",
                    help="Backend; repeatable. Default: all that are known.")
    group.addoption("--moeguard-recipe", action="append", metavar="NAME",
                    help="Recipe; repeatable. Default: all.")
    group.addoption("--moeguard-profile", metavar="NAME", help="smoke (default), ci, nightly or soak.")
    group.addoption("--moeguard-budget", metavar="TIME",
                    help="Time for one backend and recipe, for example 3s (default) or 5m.")
    group.addoption("--moeguard-seed", type=int, metavar="N", help="Seed of the draw. Default: 0.")
    group.addoption("--moeguard-plugin", action="append", metavar="FILE",
                    help="Python file that registers backends; repeatable.")
    group.addoption("--moeguard-ledger", metavar="FILE",
                    help="Known findings, which fail no test. Default: packaged.")
    group.addoption("--moeguard-allowlist", metavar="FILE",
                    help="Cells that it has on here must pass; findings of all others are expected failures.")
    group.addoption("--moeguard-out", metavar="DIR",
                    help="New or empty folder for one run directory a backend and recipe. Default: in the cache.")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; with ``--moeguard``, check the options and register the collector."""
    config.addinivalue_line("markers", MARKER)
    if config.getoption("moeguard"):
        from moeguard.plugin.collection import Collection

        config.pluginmanager.register(Collection(config), "moeguard-collection")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise tests that take one of the two fixtures."""
    if {"moeguard_case", "moeguard_backend"} & set(metafunc.fixturenames):
        from moeguard.plugin.parameters import parametrise

        parametrise(metafunc)


@pytest.fixture
def moeguard_case(request: pytest.FixtureRequest) -> Case:
    """A drawn case. With ``moeguard_backend`` beside it, cases that the backend does not support are skipped."""
    case: Case = request.param
    if "moeguard_backend" in request.fixturenames:
        backend: Backend = request.getfixturevalue("moeguard_backend")
        support = backend.supports(case)
        if not support.supported:
            pytest.skip(f"{backend.name}: {support.reason or 'does not support the case'}")
    return case


@pytest.fixture
def moeguard_backend(request: pytest.FixtureRequest) -> Backend:
    """A backend; the test is skipped when it cannot run here."""
    from moeguard.plugin.parameters import usable

    return usable(request.param)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of one cell on one worker, where they share a campaign; all others are spread as ever."""
    if config.getoption("moeguard") and config.getoption("dist") == "load":
        from moeguard.plugin.scheduling import CellScheduling

        return CellScheduling(config, log)
    return None
