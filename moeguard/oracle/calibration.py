"""False-alarm rates of the judge, counted on healthy executions over boundary shapes.

``python -m moeguard.oracle.calibration --executions N --seed S --out DIR`` writes DIR/calibration-S.json and .md. Shapes:
T 1-127, H 8-200, I 8-128 (where scales belong to groups: multiples of the group, up to 256), E 1-16, K 1-8; all recipes,
rounding points, activations, input and scale kinds. Answers come from ``oracle.emulation``. Counted: first-look candidates by
rule, alarms after confirmation by more twins and by a second seed, and how often the smallest block p-value (times the number
of blocks) and the element p-value fall below 10^-k.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special

from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES
from moeguard.oracle.blocks import RULES, sums
from moeguard.oracle.emulation import Emulation
from moeguard.oracle.judge import Judge, Judgement
from moeguard.oracle.reference import Reference, make_reference
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

#: Executions that share one reference.
ORDERS = 8
DECADES = range(1, 8)
_BOUNDARY = {"num_tokens": (1, 2, 3, 4, 7, 8, 16, 17, 31, 33, 63, 64, 65, 127),
             "hidden_size": (8, 16, 32, 64, 72, 128, 136, 192, 200),
             "intermediate_size": (8, 16, 24, 32, 64, 96, 120, 128)}
_ACTIVATIONS = ("swiglu", "geglu", "geglu_tanh", "swiglu_oai", "relu2", "silu", "gelu")
_INPUTS = ("normal", "normal", "heavy_tail", "sparse", "spread", "outlier", "zeros", "exact")
_SCALES = ("normal", "normal", "tiny", "zero", "bimodal", "heterogeneous", "saturating")
_ROUTINGS = ("uniform", "balanced", "skewed", "one_expert", "empty_experts", "duplicate_ids", "invalid_ids")


@dataclass
class Tally:
    """Counts of one recipe.

    suspected, alarmed: references (distinct cases) with at least one candidate or alarm. The ORDERS executions of a
    reference share its data, so bounds on rates count references.
    """

    executions: int = 0
    references: int = 0
    suspected: int = 0
    alarmed: int = 0
    candidates: Counter[str] = field(default_factory=Counter)
    after_twins: Counter[str] = field(default_factory=Counter)
    alarms: Counter[str] = field(default_factory=Counter)
    block_tail: Counter[int] = field(default_factory=Counter)
    element_tail: Counter[int] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)

    def highest(self, name: str, value: float) -> None:
        """Keep the largest value seen."""
        if math.isfinite(value):
            self.largest[name] = max(value, self.largest.get(name, 0.0))


def draw_case(rng: np.random.Generator, recipe: str) -> Case:
    """A random healthy case over boundary shapes."""
    def size(name: str, low: int, high: int) -> int:
        found = int(rng.choice(_BOUNDARY[name])) if rng.random() < 0.5 else int(rng.integers(low, high + 1))
        return found if group == 1 or name == "num_tokens" else found * 256 // high // group * group or group

    group = RECIPES[recipe].group
    experts = int(rng.choice((1, 2, 3, 4, 8, 16)))
    exact = rng.random() < 0.05
    kind = "exact" if exact else str(rng.choice(_INPUTS[:-1]))
    exponent = rng.integers(-149, 128) if rng.random() < 0.2 else rng.integers(-40, 20)
    return Case.model_validate({
        "shape": {"num_tokens": size("num_tokens", 1, 127), "hidden_size": size("hidden_size", 8, 200),
                  "intermediate_size": size("intermediate_size", 8, 128), "num_experts": experts,
                  "top_k": min(experts, int(rng.choice((1, 2, 4, 8))))},
        "recipe": recipe, "activation": {"kind": "swiglu" if exact else str(rng.choice(_ACTIVATIONS))},
        "routing": {"kind": str(rng.choice(_ROUTINGS))}, "inputs": {"kind": kind},
        "scales": {"kind": str(rng.choice(_SCALES)), "exponent": int(exponent)},
        "weights": {"kind": "zero_expert" if rng.random() < 0.1 else "normal",
                    "bias": bool(not exact and rng.random() < 0.2)},
        "seed": int(rng.integers(0, 2**31))})


def draw_numerics(rng: np.random.Generator, recipe: str) -> Numerics:
    """The recipe's own rounding points, or a variant that real kernels have."""
    base = RECIPES[recipe].numerics
    options: list[dict[str, Any]] = [{}, {}, {"expert_output": RECIPES[recipe].output}, {"combine": "output"},
                                     {"expert_output": "bf16", "combine": "bf16"},
                                     {"projection": RECIPES[recipe].output, "expert_output": RECIPES[recipe].output},
                                     {"projection": RECIPES[recipe].output, "expert_output": RECIPES[recipe].output,
                                      "combine": "output"}]
    chain = "bf16+" + base.intermediate.removeprefix("bf16+")
    if RECIPES[recipe].narrow:
        options += [{"intermediate": chain}]
    if "e4m3" in base.intermediate:  # FP8 tensor cores of Hopper; block-scaled ones accumulate in float32
        options += [{"accumulate": "fp8_hopper"}, {"accumulate": "fp8_hopper", "intermediate": chain, "expert_output": "bf16"}]
    choice = options[int(rng.integers(len(options)))]
    return Numerics(**{name: choice.get(name, getattr(base, name)) for name in
                       ("input", "intermediate", "expert_output", "accumulate", "combine", "projection")})


def observe(tally: Tally, judge: Judge, answer: torch.Tensor) -> Judgement:
    """First look at one answer, with its p-values."""
    judgement = judge.judge(answer)
    tally.executions += 1
    if judge.judged == 0 or judge.reference.exact or "max_z" not in judgement.numbers:
        return judgement
    numbers, plan = judgement.numbers, judge.plan
    totals = sums(judge.normalised(answer.reshape(judge.reference.y.shape).double()).square(), plan)
    blocks, smallest = sum(len(value) for value in plan.count.values()), 1.0
    for rule in RULES:
        kept = plan.count[rule] >= judge.limits.min_block
        nu, mean = plan.freedom[rule][kept].numpy(), (totals[rule][kept] / plan.count[rule][kept]).numpy()
        if len(nu):
            smallest = min(smallest, float(special.chdtrc(nu, nu * mean).min()))
            tally.highest(rule, math.sqrt(float(mean.max())))
    element = 2 * judge.judged * float(special.ndtr(-numbers["max_z"]))
    tally.highest("max_z/tau", numbers["max_z"] / numbers["tau"])
    tally.highest("rho", numbers.get("rho") or 0.0)
    for decade in DECADES:
        tally.block_tail[decade] += smallest * blocks < 10.0**-decade
        tally.element_tail[decade] += element < 10.0**-decade
    return judgement


def follow_up(tally: Tally, judge: Judge, answer: torch.Tensor, judgement: Judgement, kernel: int) -> None:
    """Confirm a first-look candidate as a campaign does: more twins, then a second seed of the same case."""
    reference = judge.reference
    name = "+".join(judgement.failed)
    tally.candidates[name] += 1
    case = reference.problem.case
    confirmed = not judgement.soft or judge.confirms(answer, judgement)
    again = confirmed
    if confirmed:
        tally.after_twins[name] += 1
        if judgement.soft:
            second = build_problem(case.with_(seed=case.seed + 1), WeightBank())
            other = Judge(make_reference(second, reference.numerics), judge.limits)
            repeat = Emulation(kernel).run(second, reference.numerics)
            verdict = other.judge(repeat)
            again = not verdict.passed and (not verdict.soft or other.confirms(repeat, verdict))
        if again:
            tally.alarms[name] += 1
    if len(tally.seen) < 400:
        tally.seen.append({"rule": name, "confirmed": confirmed, "alarm": again, "kernel": kernel,
                           "numerics": repr(reference.numerics), "case": json.loads(case.to_json(indent=None)),
                           "numbers": {k: v for k, v in judgement.numbers.items() if k != "decoded"}})


def calibrate(executions: int, seed: int, recipes: tuple[str, ...], seconds: float = math.inf) -> dict[str, Tally]:
    """Run healthy executions, ORDERS a reference, in turns over the recipes."""
    rng = np.random.default_rng(seed)
    tallies = {recipe: Tally() for recipe in recipes}
    start, done = time.monotonic(), 0
    while done < executions and time.monotonic() - start < seconds:
        for recipe in recipes:
            reference = _reference(rng, recipe)
            judge, tally = Judge(reference), tallies[recipe]
            tally.references += 1
            before = sum(tally.candidates.values()), sum(tally.alarms.values())
            for _ in range(ORDERS):
                kernel = int(rng.integers(2**40))
                answer = Emulation(kernel).run(reference.problem, reference.numerics)
                judgement = observe(tally, judge, answer)
                done += 1
                if not judgement.passed:
                    follow_up(tally, judge, answer, judgement, kernel)
            tally.suspected += sum(tally.candidates.values()) > before[0]
            tally.alarmed += sum(tally.alarms.values()) > before[1]
    return tallies


def _reference(rng: np.random.Generator, recipe: str) -> Reference:
    case, numerics = draw_case(rng, recipe), draw_numerics(rng, recipe)
    return make_reference(build_problem(case, WeightBank()), numerics)


def upper_bound(failures: int, runs: int) -> float:
    """Clopper-Pearson 95 % upper bound of a rate."""
    return 1.0 if failures >= runs else float(special.betainccinv(failures + 1, runs - failures, 0.05))


def as_markdown(tallies: dict[str, Tally], seed: int) -> str:
    """Tables of a calibration."""
    header = ("recipe", "executions", "references", "candidates", "after twins", "alarms", "references with a candidate",
              "with an alarm", "95 % bound on the latter")
    rows: list[tuple[object, ...]] = []
    for recipe, tally in tallies.items():
        alarms = sum(tally.alarms.values())
        rows.append((recipe, tally.executions, tally.references, dict(tally.candidates), dict(tally.after_twins), alarms,
                     tally.suspected, tally.alarmed, f"{upper_bound(tally.alarmed, tally.references):.1e}"))
    every = list(tallies.values())
    references, alarmed = sum(t.references for t in every), sum(t.alarmed for t in every)
    rows.append(("all", sum(t.executions for t in every), references, "", "", sum(sum(t.alarms.values()) for t in every),
                 sum(t.suspected for t in every), alarmed, f"{upper_bound(alarmed, references):.1e}"))
    tails = [(recipe, name, *(f"{tail[k] / max(tally.executions, 1):.1e}" for k in DECADES))
             for recipe, tally in tallies.items()
             for name, tail in (("blocks", tally.block_tail), ("elements", tally.element_tail))]
    names = (*RULES, "max_z/tau", "rho")
    largest = [(recipe, *(f"{tally.largest.get(name, 0.0):.3g}" for name in names)) for recipe, tally in tallies.items()]
    return "\n\n".join((
        f"# Calibration, seed {seed}", _table(header, rows),
        "Share of executions whose smallest p-value is below 10^-k (blocks: chi-square model, times the number of blocks; "
        "elements: Gaussian, times the number of elements). Rows of the first kind that exceed are candidates, not alarms.",
        _table(("recipe", "rule", *(f"10^-{k}" for k in DECADES)), tails),
        "Largest healthy values:", _table(("recipe", *names), largest))) + "\n"


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def as_json(tallies: dict[str, Tally]) -> dict[str, Any]:
    """The counts as plain values."""
    return {recipe: {name: {str(k): v for k, v in value.items()} if isinstance(value, dict) else value
                     for name, value in vars(tally).items()} for recipe, tally in tallies.items()}


def main() -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(description="False-alarm rates of the judge on healthy executions")
    parser.add_argument("--executions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--recipe", action="append", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, default=Path("reports/calibration"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    tallies = calibrate(options.executions, options.seed, tuple(options.recipe or RECIPES), options.seconds)
    options.out.mkdir(parents=True, exist_ok=True)
    text = as_markdown(tallies, options.seed)
    (options.out / f"calibration-{options.seed}.md").write_text(text, encoding="utf-8")
    path = options.out / f"calibration-{options.seed}.json"
    path.write_text(json.dumps(as_json(tallies), indent=1, default=str), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
