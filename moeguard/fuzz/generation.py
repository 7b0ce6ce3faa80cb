"""Rounds: fixed lists of cases, the same in every process, drawn by Hypothesis' engine.

Hypothesis mixes constants found in the loaded modules of a project into its integers, and keeps them in a folder; both
would make a round depend on the process. A provider (Hypothesis' interface for alternative backends) with uniform draws
from one seeded generator replaces that, so that a round does not hang on a Hypothesis version's distribution either.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import NoReturn

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider
from hypothesis.strategies import SearchStrategy

from moeguard.core.case import Case
from moeguard.fuzz.bank import ROUNDS, banked, entries, together
from moeguard.fuzz.fields import SEEDS
from moeguard.fuzz.profiles import Profile
from moeguard.fuzz.strategies import cases

BACKEND = "moeguard-uniform"
_RANDOM: ContextVar[random.Random] = ContextVar("moeguard_round_random")


class UniformProvider(PrimitiveProvider):
    """Integers and booleans alone, uniform, from the generator of the round that is being drawn."""

    def __init__(self, conjecturedata: object = None, /) -> None:
        super().__init__(None)
        self._random = _RANDOM.get()

    def draw_boolean(self, p: float = 0.5) -> bool:
        """True with probability ``p``."""
        return self._random.random() < p

    def draw_integer(self, min_value: int | None = None, max_value: int | None = None, *,
                     weights: dict[int, float] | None = None, shrink_towards: int = 0) -> int:
        """Uniform in [min_value, max_value]; both bounds are required."""
        assert min_value is not None and max_value is not None
        return self._random.randint(min_value, max_value)

    def draw_float(self, **constraints: object) -> NoReturn:
        """Cases hold no drawn floats."""
        raise NotImplementedError

    def draw_string(self, *arguments: object, **constraints: object) -> NoReturn:
        """Cases hold no drawn strings."""
        raise NotImplementedError

    def draw_bytes(self, *arguments: object, **constraints: object) -> NoReturn:
        """Cases hold no drawn bytes."""
        raise NotImplementedError


AVAILABLE_PROVIDERS[BACKEND] = UniformProvider


def draw_round(profile: Profile, recipes: Sequence[str], seed: int, round_number: int) -> tuple[Case, ...]:
    """The ``profile.round_size`` distinct cases of a round; they depend on the arguments alone.

    The simplest case comes first in round 0 and is left out of later rounds. Raises UnknownNameError for an unknown recipe.
    """
    return _draw(profile, tuple(recipes), seed, round_number)


def draw_bank(profile: Profile, recipes: Sequence[str], seed: int, round_number: int) -> tuple[Case, ...]:
    """The weight bank of a round; likewise, and the same for ``bank.ROUNDS`` rounds."""
    return _bank(profile, tuple(recipes), seed, round_number // ROUNDS)


@lru_cache(maxsize=8)
def _draw(profile: Profile, recipes: tuple[str, ...], seed: int, round_number: int) -> tuple[Case, ...]:
    strategy = banked(cases(profile, recipes), profile, draw_bank(profile, recipes, seed, round_number), True)
    start = 1 if round_number else 0
    drawn = _collect(strategy, profile.round_size + 1, f"{profile.name}|{seed}|{round_number}")
    return distinct(together(drawn[start: start + profile.round_size]))


@lru_cache(maxsize=8)
def _bank(profile: Profile, recipes: tuple[str, ...], seed: int, stretch: int) -> tuple[Case, ...]:
    count = entries(len(recipes))
    return tuple(case for recipe in recipes for case in _collect(
        cases(profile, (recipe,), probes=False), count + 1, f"bank|{profile.name}|{seed}|{stretch}|{recipe}")[1:])


def _collect(strategy: SearchStrategy[Case], count: int, label: str) -> list[Case]:
    """``count`` draws of ``strategy``, the simplest first; they depend on ``label`` alone."""
    drawn: list[Case] = []

    @hypothesis_seed(0)
    @settings(backend=BACKEND, phases=[Phase.generate], max_examples=count, database=None, deadline=None, derandomize=False,
              verbosity=Verbosity.quiet, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(case: Case) -> None:
        drawn.append(case)

    digest = hashlib.sha256(f"moeguard|{label}".encode()).digest()
    token = _RANDOM.set(random.Random(int.from_bytes(digest[:16], "big")))
    try:
        collect()
    finally:
        _RANDOM.reset(token)
    return drawn


def distinct(drawn: Sequence[Case]) -> tuple[Case, ...]:
    """A repeated case gets the next seed that is new."""
    seen: dict[Case, None] = {}
    for case in drawn:
        while case in seen:
            case = case.with_(seed=(case.seed + 1) % SEEDS[1])
        seen[case] = None
    return tuple(seen)
