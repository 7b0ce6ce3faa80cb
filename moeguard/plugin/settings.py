"""The command line of ``pytest --moeguard``, checked."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from moeguard.backends import registry
from moeguard.core.duration import duration
from moeguard.core.errors import OWN_BACKEND, MoeguardError, PluginError
from moeguard.core.recipe import RECIPES
from moeguard.engine.options import Options, chosen_device
from moeguard.engine.plugins import load_plugins
from moeguard.ledger.file import PACKAGED, Ledger
from moeguard.plugin.allowance import Allowances

#: Seconds of drawing and judging that one backend and recipe get.
BUDGET = "3s"
#: What follows ``--moeguard-``.
OPTIONS = ("backend", "recipe", "profile", "budget", "seed", "plugin", "ledger", "allowlist", "out")
KEY = pytest.StashKey["Settings"]()


@dataclass(frozen=True, slots=True)
class Settings:
    """backends, recipes: names. plugins: resolved paths. budget: seconds of a cell. out: None for pytest's cache.

    ledger: resolved path, None for the packaged one. allowances: None without an allowlist.
    """

    backends: tuple[str, ...]
    recipes: tuple[str, ...]
    profile: str
    budget: float
    seed: int
    plugins: tuple[str, ...]
    device: str
    ledger: str | None
    allowances: Allowances | None
    out: Path | None

    def options(self, backend: str, recipe: str) -> Options:
        """Options of the campaign of one cell."""
        return Options(backends=(backend,), recipes=(recipe,), profile=self.profile, budget=self.budget, seed=self.seed,
                       device=self.device, plugins=(*self.plugins, *_origin(backend, self.plugins)), ledger=self.ledger)


def settings(config: pytest.Config) -> Settings:
    """The settings of a test run, made once. Raises pytest.UsageError that names the option."""
    if KEY not in config.stash:
        try:
            config.stash[KEY] = _read(config)
        except MoeguardError as error:
            raise pytest.UsageError(_named(worded(error))) from None
    return config.stash[KEY]


def _read(config: pytest.Config) -> Settings:
    here = config.invocation_params.dir
    plugins = tuple(str((here / file).resolve()) for file in config.getoption("moeguard_plugin") or ())
    load_plugins(plugins)
    out, ledger = config.getoption("moeguard_out"), config.getoption("moeguard_ledger")
    ledger = None if ledger in (None, PACKAGED) else str((here / ledger).resolve())
    Ledger.load(ledger)
    seed, device, allowlist = config.getoption("moeguard_seed"), chosen_device(None), config.getoption("moeguard_allowlist")
    made = Settings(
        backends=_split(config.getoption("moeguard_backend")) or tuple(registry.names()),
        recipes=_split(config.getoption("moeguard_recipe")) or tuple(RECIPES),
        profile=config.getoption("moeguard_profile") or "smoke",
        budget=duration(config.getoption("moeguard_budget") or BUDGET),
        seed=0 if seed is None else seed, plugins=plugins, device=device, ledger=ledger,
        allowances=None if allowlist is None else Allowances(here / allowlist, device), out=None if out is None else here / out)
    Options(backends=made.backends, recipes=made.recipes, profile=made.profile, budget=made.budget, seed=made.seed,
            device=made.device).check()
    return made


def _split(values: Iterable[str] | None) -> tuple[str, ...]:
    """Values of a repeatable option, each of which may hold several names with commas between them."""
    return tuple(dict.fromkeys(part.strip() for value in values or () for part in value.split(",")))


def worded(error: MoeguardError) -> str:
    """The text of an error, with the option that adds a backend as pytest knows it."""
    return str(error).replace(OWN_BACKEND, OWN_BACKEND.replace("--", "--moeguard-"))


def _named(message: str) -> str:
    """The message with the option as pytest knows it."""
    field, colon, rest = message.partition(":")
    name = field.removeprefix("--")
    return f"--moeguard-{name}{colon}{rest}" if name in OPTIONS else message


def _origin(name: str, plugins: Iterable[str]) -> tuple[str, ...]:
    """The file of a backend that a conftest.py or a test registered, so that worker processes import it too."""
    if name in registry.BUILTINS or name in entry_points(group=registry.ENTRY_POINT_GROUP).names:
        return ()
    if any(name in registry.load_plugin(plugin) for plugin in plugins):
        return ()
    kind = type(registry.get(name))
    try:
        file = inspect.getfile(kind)
    except (TypeError, OSError):
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    if not file:
        raise PluginError(f"backend {name}: defined in no file, so that worker processes cannot import it")
    return (str(Path(file).resolve()),)
