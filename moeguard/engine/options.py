"""Options of a campaign: checked once, stored in the manifest, taken from there on resume."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from typing import Any

from pydantic import TypeAdapter

from moeguard.backends import registry
from moeguard.core.case import Case
from moeguard.core.errors import CaseError, MoeguardError, UnknownNameError
from moeguard.core.recipe import RECIPES
from moeguard.fuzz.profiles import cost, profile

DEVICES = ("cpu", "cuda")
#: Workers that share a GPU unless more are asked for; each holds references and weights of its own.
MOST_WORKERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a campaign does. budget: seconds or None. max_cases: drawn cases or None. timeout: seconds for one backend call.

    cases: JSON data of given cases (replay, sweep) instead of drawn ones. labels: names of their layers, one for each case of a
    sweep. tactic: force this one. repeat: runs of each given case.
    sweep: force every tactic of the given cases instead of running the checks. ledger: file of known findings, None for
    the packaged one. strict: known findings fail the run too, and cases that are known to kill the process are launched.
    ray: address of the Ray cluster whose hosts run the scenarios, None for this host; ``workers`` then bounds its actors.
    """

    backends: tuple[str, ...]
    recipes: tuple[str, ...]
    profile: str = "ci"
    budget: float | None = None
    max_cases: int | None = None
    seed: int = 0
    device: str = "cpu"
    workers: int = 1
    timeout: float = 10.0
    plugins: tuple[str, ...] = ()
    cases: tuple[dict[str, Any], ...] = ()
    labels: tuple[str, ...] = ()
    tactic: str | None = None
    repeat: int = 1
    sweep: bool = False
    ledger: str | None = None
    strict: bool = False
    ray: str | None = None

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Options:
        """Inverse of ``to_data``. Raises ValueError on unknown or missing fields, and on values of a wrong type."""
        known = {f.name for f in fields(cls)}
        if set(data) - known:
            raise ValueError(f"unknown options {sorted(set(data) - known)}")
        return TypeAdapter(cls).validate_json(json.dumps(data), strict=True)

    def check(self) -> None:
        """Raise a MoeguardError that names the first wrong option and what is allowed."""
        profile(self.profile, self.device)
        for recipe in self.recipes:
            if recipe not in RECIPES:
                raise UnknownNameError("--recipe", recipe, list(RECIPES))
        for name in self.backends:
            registry.get(name)
        limits: tuple[tuple[str, float | None, float], ...] = (
            ("--budget", self.budget, 0), ("--max-cases", self.max_cases, 0), ("--workers", self.workers, 0),
            ("--timeout", self.timeout, 0), ("--seed", self.seed, -1), ("--repeat", self.repeat, 0))
        for option, value, low in limits:
            if value is not None and value <= low:
                raise MoeguardError(f"{option}: {value:g}; allowed: {'0 or more' if low < 0 else 'more than 0'}")
        for case in self.cases:
            _check_memory(Case.model_validate(case), self.device)


def _check_memory(case: Case, device: str) -> None:
    """Refuse a given case whose tensors, at eight bytes an element, cannot fit into the whole memory of the device."""
    if device == "cuda":
        import torch

        there = int(torch.cuda.get_device_properties(0).total_memory)
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = cost(case)
    least = 8 * (needed.weights + needed.activations)
    if least > there:
        raise CaseError(f"shape: needs at least {least / 2**30:,.0f} GiB; allowed: {there / 2**30:,.0f} GiB, "
                        f"the memory of {device}")


def known_device(device: str | None) -> str | None:
    """``device``, which may be on another machine. Raises UnknownNameError when it is not one of DEVICES or None."""
    if device is not None and device not in DEVICES:
        raise UnknownNameError("--device", device, list(DEVICES))
    return device


def check_device(device: str) -> None:
    """Raise a MoeguardError when ``device`` is unknown or not on this machine."""
    if known_device(device) == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise MoeguardError("--device: cuda is not available on this machine; allowed: cpu")


def usual_workers(device: str) -> int:
    """Worker processes of a campaign that names none: on a GPU several, because it is the host that takes the time."""
    if device == "cpu":
        return 1
    import torch

    gpus = max(1, torch.cuda.device_count())
    return max(gpus, min(MOST_WORKERS * gpus, (os.cpu_count() or 1) // 2))


def chosen_device(device: str | None) -> str:
    """``device`` when it is named (checked as ``check_device`` does), else ``cuda`` when torch sees a GPU, else ``cpu``."""
    if device is not None:
        check_device(device)
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
