"""Detection floors of the judge: how small a defect may be and still become a finding.

``python -m moeguard.oracle.floors --draws N --out DIR`` writes DIR/floors.md. A defect is added to healthy answers of
``oracle.emulation``; a draw counts as caught when the first look fails and, if only block or ratio rules did, when the twins
confirm it. A campaign needs that on two seeds, so floors are given for all draws and for half of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES
from moeguard.oracle.emulation import Emulation
from moeguard.oracle.judge import Judge
from moeguard.oracle.reference import Reference, make_reference
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

#: T, H, I, E, K; H and I are rounded up to what the recipe needs.
SHAPES = {"G2": (128, 256, 128, 16, 4), "small": (17, 64, 32, 8, 2)}
SIZES = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
KERNELS = {name: Numerics.of(name) for name in RECIPES} | {
    f"{name}, 14-bit": replace(Numerics.of(name), accumulate="fp8_hopper") for name, recipe in RECIPES.items()
    if "e4m3" in recipe.numerics.intermediate}

Defect = Callable[[Reference, Tensor, float], Tensor]


def scale_expert(reference: Reference, y: Tensor, size: float) -> Tensor:
    """One expert (the busiest) times 1 + size."""
    slots = reference.slots
    mine = slots.expert == int(torch.bincount(slots.expert).argmax())
    return y + size * slots.combine(reference.expert_output * (slots.weight * mine)[:, None])


def scale_all(reference: Reference, y: Tensor, size: float) -> Tensor:
    """The whole answer times 1 + size."""
    return y * (1 + size)


def lose_expert(reference: Reference, y: Tensor, size: float) -> Tensor:
    """The middle token without its expert of least weight."""
    slots, token = reference.slots, y.shape[0] // 2
    mine = (slots.token == token).nonzero()[:, 0]
    slot = mine[slots.weight[mine].argmin()]
    y[token] -= slots.weight[slot] * reference.expert_output[slot]
    return y


def zero_tile(reference: Reference, y: Tensor, size: float) -> Tensor:
    """The last 64x64 tile (ragged, or the whole answer, in small shapes) unwritten."""
    y[(y.shape[0] - 1) // 64 * 64:, (y.shape[1] - 1) // 64 * 64:] = 0
    return y


def one_element(reference: Reference, y: Tensor, size: float) -> Tensor:
    """One element off by six standard deviations of the answer."""
    y[y.shape[0] // 2, y.shape[1] // 2] += 6 * reference.y.std()
    return y


def caught(judge: Judge, defect: Defect, healthy: Tensor, size: float) -> bool:
    """Whether the defect passes the first look and its confirmation."""
    answer = defect(judge.reference, healthy.double(), size).to(healthy.dtype)
    judgement = judge.judge(answer)
    return not judgement.passed and (not judgement.soft or judge.confirms(answer, judgement))


def floor(judges: list[tuple[Judge, Tensor]], defect: Defect, share: float) -> float | None:
    """Smallest of SIZES from which on the defect is caught in ``share`` of the draws; None when the largest is not."""
    smallest = None
    for size in reversed(SIZES):
        if sum(caught(judge, defect, healthy, size) for judge, healthy in judges) < share * len(judges):
            break
        smallest = size
    return smallest


def draw(name: str, shape: str, count: int) -> list[tuple[Judge, Tensor]]:
    """Judges of ``count`` normal cases with one healthy answer each."""
    numerics, names = KERNELS[name], ("num_tokens", "hidden_size", "intermediate_size", "num_experts", "top_k")
    found = []
    for seed in range(count):
        recipe = name.split(",", 1)[0]
        sizes = dict(zip(names, SHAPES[shape], strict=True))
        for size in ("hidden_size", "intermediate_size"):
            sizes[size] += -sizes[size] % RECIPES[recipe].group
        case = Case.model_validate({"recipe": recipe, "shape": sizes, "seed": seed})
        reference = make_reference(build_problem(case, WeightBank()), numerics)
        found.append((Judge(reference), Emulation(seed).run(reference.problem, numerics)))
    return found


def as_markdown(count: int) -> str:
    """The table of floors and shares."""
    lines = ["| kernel | shape | expert x (1+e), all draws | half | whole x (1+e), all draws | half | token loses expert "
             "| tile zero | element +6 sigma |", "|---" * 9 + "|"]
    for name in KERNELS:
        for shape in SHAPES:
            judges = draw(name, shape, count)
            floors = [floor(judges, defect, share) for defect in (scale_expert, scale_all) for share in (1.0, 0.5)]
            shares = [sum(caught(judge, defect, healthy, 0.0) for judge, healthy in judges)
                      for defect in (lose_expert, zero_tile, one_element)]
            lines.append(f"| {name} | {shape} | " + " | ".join("-" if f is None else f"{100 * f:g} %" for f in floors) + " | "
                         + " | ".join(f"{share}/{count}" for share in shares) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Command line of the module."""
    parser = argparse.ArgumentParser(description="Detection floors of the judge")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("reports/calibration"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = as_markdown(options.draws)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "floors.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
