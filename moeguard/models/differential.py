"""The model differential: arms on one model, one set of weights and one set of texts, against float32 and healthy noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from moeguard.backends.torch_reference import TorchReference
from moeguard.core.case import Case
from moeguard.core.errors import MoeguardError, UnknownNameError
from moeguard.core.recipe import RECIPES
from moeguard.models.answers import answers
from moeguard.models.architecture import VOCABULARY, Architecture, Size
from moeguard.models.band import Band, Placed, place
from moeguard.models.coarse import Coarse
from moeguard.models.distance import Distance, distance
from moeguard.models.experts import Arm, Float32, OfBackend, install
from moeguard.models.parameters import fill
from moeguard.mutants.catalogue import MUTANTS
from moeguard.tensors.counter import Stream


@dataclass(frozen=True, slots=True)
class Setting:
    """architecture at ``size`` with ``layers`` layers; recipe of the experts; texts prompts of ``tokens`` tokens each, of
    which ``length`` more are written; seed of weights and texts; device ``cpu`` or ``cuda``."""

    architecture: Architecture
    size: Size
    layers: int = 2
    recipe: str = "bf16"
    texts: int = 4
    tokens: int = 64
    length: int = 16
    seed: int = 0
    device: str = "cpu"

    def check(self) -> None:
        """Raises MoeguardError where the layers, or the tokens that the recipe stores, cannot be."""
        if self.recipe not in RECIPES:
            raise UnknownNameError("--recipe", self.recipe, list(RECIPES))
        wide = [name for name, one in RECIPES.items() if one.x_format in ("bf16", "fp16")]
        if self.recipe not in wide:
            raise MoeguardError(f"--recipe: {self.recipe} stores quantised tokens, which a model does not hand over; "
                                f"allowed: {', '.join(wide)}")
        self.cases()

    def to_data(self) -> dict[str, object]:
        """As JSON."""
        return {"arch": self.architecture.name, "size": self.size, "layers": self.layers, "recipe": self.recipe,
                "texts": self.texts, "tokens": self.tokens, "length": self.length, "seed": self.seed, "device": self.device}

    def cases(self) -> list[Case]:
        """The case of each layer; their weights differ."""
        return [self.architecture.case(self.size, self.recipe, self.texts * self.tokens, self.seed + layer)
                for layer in range(self.layers)]


@dataclass(frozen=True, slots=True)
class Result:
    """One arm: its distance from float32, and where that lies. healthy: it is one of the two that make the band. failed: the
    exception that it raised instead. tactics: what its tuning chose, by number of tokens."""

    arm: str
    distance: Distance | None
    placed: Placed | None
    healthy: bool = False
    failed: str = ""
    tactics: Mapping[int, str] = field(default_factory=dict)


def broken_arms(case: Case) -> list[Arm]:
    """The guard's own mutants whose defect shows in any answer to ``case``: those that need no other case, process or tactic."""
    shown = [mutant() for mutant in MUTANTS
             if not mutant.trigger and not mutant.isolated and mutant.expected & {"mismatch", "unwritten_output", "non_finite"}
             and not mutant.choices]
    return [OfBackend(one, broken=True) for one in shown if one.supports(case).supported]


def differential(setting: Setting, arms: Sequence[Arm], done: Callable[[str], None] = lambda name: None) -> list[Result]:
    """Results of the two healthy arms, then of ``arms`` in their order. done: called with each arm's name once it is measured."""
    model, experts, prompts = _model(setting)
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        base = answers(model, experts, Float32(), prompts, setting.length)
        done(base.arm)

        def measured(arm: Arm) -> Distance:
            one = answers(model, experts, arm, prompts, setting.length)
            written = sorted({name for layer in experts for name in layer.changed()})
            if written:
                raise RuntimeError(f"wrote to {', '.join(written)}")
            done(arm.name)
            return distance(one.logits, base.logits, one.text, base.text)

        healthy = {arm.name: measured(arm) for arm in (OfBackend(TorchReference()), OfBackend(Coarse()))}
        band = Band.of(list(healthy.values()))
        results = [Result(name, one, place(one, band), healthy=True) for name, one in healthy.items()]
        for arm in arms:
            try:
                one = measured(arm)
            except Exception as error:
                results.append(Result(arm.name, None, None, failed=f"{type(error).__name__}: {' '.join(str(error).split())}"))
            else:
                results.append(Result(arm.name, one, place(one, band), tactics=arm.chosen))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32
    return results


def _model(setting: Setting) -> tuple[Any, Any, torch.Tensor]:
    """The model with its experts, and prompts int64 [P, S]."""
    cases = setting.cases()
    model = setting.architecture.build(setting.architecture.config(setting.size, setting.layers))
    experts = install(model, cases, setting.device)
    fill(model, setting.seed, setting.device)
    stream = Stream("texts", setting.seed, device=setting.device)
    prompts = stream.integers("tokens", setting.texts * setting.tokens, 0, VOCABULARY[setting.size])
    return model, experts, prompts.view(setting.texts, setting.tokens)
