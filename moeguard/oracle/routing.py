"""Is the answer of a router one that a correct router could give? Every token is judged, ties and near ties included.

The margin: a router that ranks scores within the bounds of ``oracle.scores`` may return the set S exactly when no expert
that was left out must rank above one of S, that is when ``min high(S) >= max low(allowed experts outside of S)``. For groups
the same is asked of the groups that were kept: some choice of ``topk_groups`` groups must hold S and satisfy it, where the
bounds of a group are the sums of its two best bounds, rounded once more. So experts within the rounding of each other may be
swapped, and a swap beyond it is wrong; nothing is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeguard.core.router import Precision, RouterCase
from moeguard.oracle.scores import TINY, Interval, Scores, best, group_scores, scores

#: What DeepSeek-V3 adds to the sum of the weights; without it a router is as right.
EPSILON = 1e-20
#: Sum of the selected scores from which on that constant is beyond float32.
_LARGE_SUM = 1e-12


@dataclass(frozen=True, slots=True)
class Fault:
    """The first token that breaks ``rule``, how many do, a clause about it, and its numbers."""

    rule: str
    token: int
    count: int
    clause: str
    numbers: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RoutingJudgement:
    """tokens: T. undefined: rows whose logits define no answer; only their ids are judged. near_ties: tokens with another
    set than float64 gives that the margin allows. faults: at most one a rule, in the order of the rules."""

    tokens: int
    undefined: int
    near_ties: int
    faults: tuple[Fault, ...]


def judge_routing(case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor,
                  precision: Precision | None = None) -> RoutingJudgement:
    """Judge ``ids`` [T, K] (integers, any order) and ``weights`` [T, K] for ``logits`` [T, E] and ``bias`` [E] or None.

    Rules: range (0 <= id < E), repeated (ids of a token differ), set (the margin), finite, weights (each within its bounds,
    given the ids), sum (normalised weights add up to the scaling factor). A token that breaks one is not asked the next.
    """
    precision = precision or Precision()
    ids, found = ids.to(torch.int64), scores(case, logits, bias, precision)
    faults: list[Fault] = []
    good = torch.ones(ids.shape[0], dtype=torch.bool, device=ids.device)

    def rule(name: str, broken: Tensor, describe: Any) -> None:
        nonlocal good
        broken = broken & good
        good = good & ~broken
        tokens = broken.nonzero()[:, 0]
        if len(tokens):
            first = int(tokens[0])
            clause, numbers = describe(first)
            faults.append(Fault(name, first, len(tokens), clause, numbers))

    def got(token: int) -> list[int]:
        return [int(value) for value in ids[token]]

    rule("range", ((ids < 0) | (ids >= case.num_experts)).any(1),
         lambda t: (f"ids {got(t)} are not all in 0 to {case.num_experts - 1}", {"got": got(t)}))
    rule("repeated", (torch.sort(ids, dim=1).values.diff(dim=1) == 0).any(1),
         lambda t: (f"ids {got(t)} hold one expert twice", {"got": got(t)}))
    good &= found.defined
    legal = ids.clamp(0, case.num_experts - 1)
    wanted = torch.sort(best(found.exact_choice, case), dim=1).values
    other = (torch.sort(legal, dim=1).values != wanted).any(1)

    def describe_set(t: int) -> tuple[str, dict[str, Any]]:
        extra = sorted(set(got(t)) - set(wanted[t].tolist()))
        missing = sorted(set(wanted[t].tolist()) - set(got(t)))
        score = found.exact_choice[t]
        numbers = {"got": sorted(got(t)), "expected": wanted[t].tolist(), "scores_got": score[extra].tolist(),
                   "scores_expected": score[missing].tolist()}
        return f"experts {extra} were selected instead of {missing}, beyond the rounding of their scores", numbers

    rule("set", other & ~_allowed(case, found.choice, legal, precision.roundoff), describe_set)
    near = int((other & good).sum())
    given = weights.double()

    def describe_weights(t: int) -> tuple[str, dict[str, Any]]:
        return f"weights {[float(f'{w:.6g}') for w in given[t].tolist()]} of experts {got(t)}", {
            "got": given[t].tolist(), "expected": exact[t].tolist(), "ids": got(t)}

    bounds, exact = _weights(case, found, legal, weights.dtype, precision.roundoff)
    rule("finite", ~torch.isfinite(given).all(1), describe_weights)
    rule("weights", ((given < bounds.low) | (given > bounds.high)).any(1), describe_weights)
    if case.normalised:
        slack = case.scaling_factor * ((2 * case.top_k + 8) * precision.roundoff + _roundoff(weights.dtype))
        large = found.exact_value.gather(1, legal).sum(1) >= _LARGE_SUM
        rule("sum", large & ((given.sum(1) - case.scaling_factor).abs() > slack), describe_weights)
    return RoutingJudgement(ids.shape[0], int((~found.defined).sum()), near, tuple(faults))


def _allowed(case: RouterCase, choice: Interval, ids: Tensor, u: float) -> Tensor:
    """Bool [T]: whether the set of ``ids`` [T, K] is one that the bounds allow."""
    tokens, groups = ids.shape[0], case.num_groups
    picked = torch.zeros(choice.low.shape, dtype=torch.bool, device=ids.device).scatter_(1, ids, True)
    worst = choice.high.masked_fill(~picked, torch.inf).amin(1, keepdim=True)
    rest = choice.low.masked_fill(picked, -torch.inf).view(tokens, groups, case.group_size).amax(2)
    touched = picked.view(tokens, groups, case.group_size).any(2)
    harmless = rest <= worst  # may be kept, although none of its other experts was selected
    fits = (harmless | ~touched).all(1)
    spare = case.topk_groups - touched.sum(1, keepdim=True)
    low, high = group_scores(choice.low, case), group_scores(choice.high, case)
    low, high = low - u * low.abs(), high + u * high.abs()
    free, out = ~touched & harmless, ~touched & ~harmless
    # Kept groups reach a threshold and others do not exceed it; if there is one, the largest low bound outside is one.
    threshold = torch.cat((low, torch.full_like(low[:, :1], -torch.inf)), 1)[:, :, None]
    reach, exceed = high[:, None] >= threshold, low[:, None] > threshold
    fine = (reach | ~touched[:, None]).all(2) & ~(exceed & out[:, None]).any(2)
    fine &= ((exceed & free[:, None]).sum(2) <= spare) & ((reach & free[:, None]).sum(2) >= spare)
    return fits & fine.any(1)


def _weights(case: RouterCase, found: Scores, ids: Tensor, dtype: torch.dtype, u: float) -> tuple[Interval, Tensor]:
    """Bounds of the weights of ``ids`` [T, K], and their exact values, float64 [T, K]."""
    low, high = (bound.gather(1, ids) for bound in found.value)
    exact, slack = found.exact_value.gather(1, ids), (case.top_k + 6) * u
    if case.normalised:
        low, high, exact = (low / (low + (high.sum(1, keepdim=True) - high) + EPSILON),
                            high / (high + (low.sum(1, keepdim=True) - low)), exact / exact.sum(1, keepdim=True))
    elif case.method == "softmax_topk":
        slack = (case.num_experts + 6) * u  # a sum of E terms in any order
        total = [value.sum(1, keepdim=True) for value in (found.value.high, found.value.low, found.exact_value)]
        low, high, exact = low / total[0], high / total[1], exact / total[2]
    slack, least = slack + _roundoff(dtype), max(TINY, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
    return Interval((low * (1 - slack)).clamp_min(0) * case.scaling_factor - least,
                    high * (1 + slack) * case.scaling_factor + least), exact * case.scaling_factor


def _roundoff(dtype: torch.dtype) -> float:
    """Unit roundoff."""
    return torch.finfo(dtype).eps / 2
