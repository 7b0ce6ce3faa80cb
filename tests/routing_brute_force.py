"""Routing by definition, in plain Python floats and by trying every set: the judge of the vectorised judge."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

from moeguard.core.router import RouterCase


def sets(case: RouterCase, low: Sequence[float], high: Sequence[float], roundoff: float) -> Iterator[frozenset[int]]:
    """Every set of K experts that some scores within the bounds make the best, for one token.

    Groups are kept, then experts are chosen; what is chosen may not be certainly worse than what is left.
    """
    def group(bounds: Sequence[float], number: int) -> float:
        first, second = sorted(bounds[number * case.group_size: (number + 1) * case.group_size])[-1:-3:-1]
        return first + second

    for kept in combinations(range(case.num_groups), case.topk_groups):
        others = [number for number in range(case.num_groups) if number not in kept]
        if case.num_groups > 1:
            least = min(group(high, number) + roundoff * abs(group(high, number)) for number in kept)
            if any(group(low, number) - roundoff * abs(group(low, number)) > least for number in others):
                continue
        experts = [expert for number in kept for expert in range(number * case.group_size, (number + 1) * case.group_size)]
        for chosen in combinations(experts, case.top_k):
            worst = min(high[expert] for expert in chosen)
            if all(low[expert] <= worst for expert in experts if expert not in chosen):
                yield frozenset(chosen)


def route(case: RouterCase, logits: Sequence[float], bias: Sequence[float] | None) -> tuple[list[int], list[float]]:
    """Ids and weights of one token without NaN, from the formulas of docs/routing.md; ties go to the lower id."""
    def sigmoid(value: float) -> float:
        return 1.0 / (1.0 + math.exp(-value)) if value > -700 else 0.0

    experts = range(case.num_experts)
    if case.biased:
        assert bias is not None
        scores = [sigmoid(value) for value in logits]
        ranked = [scores[expert] + bias[expert] for expert in experts]
    elif case.method == "llama4_sigmoid":
        scores, ranked = [sigmoid(value) for value in logits], list(logits)
    else:
        powers = [math.exp(value - max(logits)) for value in logits]
        scores = [power / math.fsum(powers) for power in powers]
        ranked = scores
    groups = [range(number * case.group_size, (number + 1) * case.group_size) for number in range(case.num_groups)]
    if case.num_groups > 1:
        groups.sort(key=lambda group: -sum(sorted(ranked[expert] for expert in group)[-2:]))
    allowed = sorted(expert for group in groups[: case.topk_groups] for expert in group)
    ids = sorted(allowed, key=lambda expert: -ranked[expert])[: case.top_k]
    weights = [scores[expert] for expert in ids]
    total = math.fsum(weights) if case.normalised else 1.0
    return ids, [weight / total * case.scaling_factor for weight in weights]
