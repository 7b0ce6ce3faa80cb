"""Parameters of own tests: drawn cases and known backends for ``moeguard_case`` and ``moeguard_backend``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from moeguard.backends import registry
from moeguard.backends.protocol import Backend
from moeguard.core.case import Case
from moeguard.core.errors import MoeguardError
from moeguard.engine.options import Options
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import profile
from moeguard.plugin.settings import Settings, settings, worded

MAX_CASES = 20
FIELDS = ("backends", "recipes", "profile", "max_cases", "seed")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the marker asks for; what it leaves out comes from the command line."""

    backends: tuple[str, ...]
    recipes: tuple[str, ...]
    profile: str
    max_cases: int
    seed: int

    def cases(self, device: str) -> list[Case]:
        """The drawn cases, the same in every process."""
        bounds, drawn, number = profile(self.profile, device), list[Case](), 0
        while len(drawn) < self.max_cases:
            drawn += draw_round(bounds, self.recipes, self.seed, number)
            number += 1
        return drawn[: self.max_cases]


def parametrise(metafunc: pytest.Metafunc) -> None:
    """Parametrise a test by its marker. A wrong marker is an error of collection with one sentence."""
    try:
        chosen = settings(metafunc.config)
        wish = _wish(metafunc.definition.get_closest_marker("moeguard"), chosen)
    except pytest.UsageError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    except MoeguardError as error:
        raise pytest.fail.Exception(f"moeguard marker: {worded(error).removeprefix('--')}", pytrace=False) from None
    if "moeguard_backend" in metafunc.fixturenames:
        metafunc.parametrize("moeguard_backend", wish.backends, indirect=True, ids=wish.backends)
    if "moeguard_case" in metafunc.fixturenames:
        cases = wish.cases(chosen.device)
        metafunc.parametrize("moeguard_case", cases, indirect=True, ids=[case.fingerprint for case in cases])


def usable(name: str) -> Backend:
    """The backend, or a skip with its reason."""
    backend = registry.get(name)
    availability = backend.availability()
    if not availability.available:
        pytest.skip(f"{name}: {availability.reason or 'not available'}")
    return backend


def _wish(mark: pytest.Mark | None, chosen: Settings) -> Wish:
    given: dict[str, Any] = {} if mark is None else dict(mark.kwargs)
    if mark is not None and mark.args:
        raise MoeguardError(f"takes keywords alone; allowed: {', '.join(FIELDS)}")
    unknown = sorted(set(given) - set(FIELDS))
    if unknown:
        raise MoeguardError(f"{unknown[0]}: unknown keyword; allowed: {', '.join(FIELDS)}")
    wish = Wish(_names(given, "backends", chosen.backends), _names(given, "recipes", chosen.recipes),
                given.get("profile", chosen.profile), given.get("max_cases", MAX_CASES), given.get("seed", chosen.seed))
    for field in ("max_cases", "seed"):
        value = getattr(wish, field)
        if isinstance(value, bool) or not isinstance(value, int):
            raise MoeguardError(f"{field}: {value!r}; allowed: a whole number")
    Options(backends=wish.backends, recipes=wish.recipes, profile=wish.profile, max_cases=wish.max_cases,
            seed=wish.seed, device=chosen.device).check()
    return wish


def _names(given: dict[str, Any], field: str, default: tuple[str, ...]) -> tuple[str, ...]:
    value = given.get(field)
    if value is None:
        return default
    names = tuple(value) if isinstance(value, list | tuple) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise MoeguardError(f"{field}: {value!r}; allowed: a list of names")
    return names
