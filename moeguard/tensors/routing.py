"""Case to routing: logits by load pattern, then ids and weights by the router method, as an engine's top-k would.

Computed on the CPU in float64 and rounded once to float32, so that every device sees the same bits.
Sources: softmax then top-k (Mixtral, arXiv:2401.04088), sigmoid with selection bias and grouped top-k (DeepSeek-V3,
arXiv:2412.19437), sigmoid of the top-1 logit (Llama 4 model card).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.tensors import exact
from moeguard.tensors.counter import Stream

#: Routed scaling factor of the sigmoid methods is 1; groups of the grouped top-k.
GROUPS = 4


@dataclass(frozen=True, slots=True)
class Routing:
    """topk_ids int32 [T, K] (global ids), topk_weights float32 [T, K], router_logits float32 [T, E]."""

    ids: Tensor
    weights: Tensor
    logits: Tensor


def make_routing(case: Case, device: torch.device | str = "cpu") -> Routing:
    """Routing of the case; probes break it on purpose after the ordinary one was drawn."""
    shape = case.shape
    stream = Stream("routing", case.seed, case.routing.kind, case.routing.method, shape.num_tokens, shape.num_experts,
                    shape.top_k)
    logits = _logits(case, stream)
    ids, weights = select(logits, shape.top_k, case.routing.method, stream)
    if case.routing.kind == "balanced" and shape.num_tokens:
        start = torch.arange(shape.num_tokens)[:, None] * shape.top_k
        ids = (start + torch.arange(shape.top_k)) % shape.num_experts
    ids = ids.to(torch.int32)
    weights = weights.to(torch.float32)
    if case.inputs.kind == "exact":
        weights = exact.make_routing_weights(case, stream)
    ids, weights, logits = _probe(case, stream, ids, weights, logits.to(torch.float32))
    return Routing(ids.to(device), weights.to(device), logits.to(device))


def select(logits: Tensor, top_k: int, method: str, stream: Stream | None = None) -> tuple[Tensor, Tensor]:
    """Ids int64 [T, K] and weights float64 [T, K] from float64 logits [T, E]; ties go to the lower id."""
    if method in ("softmax_topk", "renormalize", "llama4_sigmoid"):
        score, choice = logits, logits
    else:
        score = torch.sigmoid(logits)
        bias = 0.0 if stream is None else stream.normal("selection-bias", logits.shape[1]).double() * 0.1
        choice = score + bias
        if method == "grouped_topk":
            choice = _mask_groups(choice, top_k)
    ids = torch.sort(choice, dim=1, descending=True, stable=True).indices[:, :top_k]
    if method == "softmax_topk":
        return ids, torch.softmax(logits, 1).gather(1, ids)
    if method == "renormalize":
        return ids, torch.softmax(logits.gather(1, ids), 1)
    if method == "llama4_sigmoid":
        return ids, torch.sigmoid(logits.gather(1, ids))
    picked = score.gather(1, ids)
    return ids, picked / picked.sum(1, keepdim=True).clamp_min(1e-20)


def _mask_groups(choice: Tensor, top_k: int) -> Tensor:
    """Keep the better half of GROUPS groups by the sum of their two best scores; others become -inf."""
    tokens, experts = choice.shape
    if experts % GROUPS or experts // GROUPS * (GROUPS // 2) < top_k:
        return choice
    size = experts // GROUPS
    best = choice.view(tokens, GROUPS, size).topk(min(2, size), dim=2).values.sum(2)
    kept = torch.sort(best, dim=1, descending=True, stable=True).indices[:, : GROUPS // 2]
    mask = torch.zeros(tokens, GROUPS, dtype=torch.bool).scatter_(1, kept, torch.ones_like(kept, dtype=torch.bool))
    return choice.masked_fill(~mask.repeat_interleave(size, 1), -torch.inf)


def _logits(case: Case, stream: Stream) -> Tensor:
    tokens, experts = case.shape.num_tokens, case.shape.num_experts
    logits = stream.normal("logits", tokens * experts).double().view(tokens, experts)
    kind = case.routing.kind
    if kind == "skewed":
        logits = logits - torch.arange(experts).double() * (8.0 / experts)
    elif kind == "one_expert":
        logits[:, case.seed % experts] += 100.0
    elif kind == "empty_experts":
        used = max(case.shape.top_k, experts // 4)
        logits[:, used:] -= 100.0
    elif kind == "all_negative_logits":
        logits = -logits.abs() - 50.0
    return logits


def _probe(case: Case, stream: Stream, ids: Tensor, weights: Tensor, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tokens, top_k = ids.shape
    kind = case.routing.kind
    if tokens == 0 or kind not in ("duplicate_ids", "invalid_ids", "nan_logits"):
        return ids, weights, logits
    hit = stream.integers("probe-token", tokens, 0, 2) == 1
    hit[0] = True
    if kind == "invalid_ids":
        slot = stream.integers("probe-slot", tokens, 0, top_k)[:, None] == torch.arange(top_k)
        bad = torch.tensor([-1, case.shape.num_experts, case.shape.num_experts + 3], dtype=torch.int32)
        choice = bad[stream.integers("probe-id", tokens, 0, 3)][:, None]
        return torch.where(slot & hit[:, None], choice, ids), weights, logits
    if kind == "duplicate_ids":
        copies = stream.integers("probe-copies", tokens, 2, max(3, top_k + 1))[:, None]
        return torch.where(hit[:, None] & (torch.arange(top_k) < copies), ids[:, :1].expand_as(ids), ids), weights, logits
    logits = torch.where(hit[:, None], torch.full_like(logits, torch.nan), logits)
    ids = torch.where(hit[:, None], torch.zeros_like(ids), ids)
    return ids, torch.where(hit[:, None], torch.full_like(weights, 1.0 / top_k), weights), logits
