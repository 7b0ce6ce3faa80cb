"""Healthy routers in plain torch, written from the published methods, in the two ways in which engines do it.

Sources: softmax and top-k (Mixtral, arXiv:2401.04088), sigmoid with selection bias and groups (DeepSeek-V3,
arXiv:2412.19437, section 2.1.2), top-1 and sigmoid (Llama 4 model card).
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.backends.routers.protocol import Router
from moeguard.core.router import RouterCase

#: Added to the sum of sigmoid weights, as DeepSeek-V3 does: far negative logits give zero, not NaN.
EPSILON = 1e-20


class TorchScores(Router):
    """Scores of all experts, groups masked with -inf, ``torch.topk``, weights gathered from the scores."""

    name = "torch_scores"

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        scores = self.scores(case, logits.float())
        choice = logits.float() if case.method == "llama4_sigmoid" else scores
        if bias is not None:
            choice = choice + bias.float()
        if case.num_groups > 1:
            choice = self.masked(case, choice)
        chosen = self.select(case, choice)
        ids.copy_(chosen)
        weights.copy_(self.weigh(case, scores.gather(1, chosen)) * case.scaling_factor)

    def scores(self, case: RouterCase, logits: Tensor) -> Tensor:
        """Softmax or sigmoid of ``logits`` [T, E]."""
        return torch.softmax(logits, 1) if case.method in ("softmax_topk", "renormalize") else torch.sigmoid(logits)

    def masked(self, case: RouterCase, choice: Tensor, fill: float = -torch.inf) -> Tensor:
        """``choice`` with ``fill`` for the experts of groups that are not kept."""
        grouped = choice.view(-1, case.num_groups, case.group_size)
        kept = self.group_scores(grouped).topk(case.topk_groups, dim=1).indices
        mask = torch.ones(grouped.shape[:2], dtype=torch.bool, device=choice.device).scatter_(1, kept, False)
        return grouped.masked_fill(mask[:, :, None], fill).view_as(choice)

    def group_scores(self, grouped: Tensor) -> Tensor:
        """Score of each group [T, G] from ``grouped`` [T, G, E / G]: the sum of the two best."""
        return grouped.topk(2, dim=2).values.sum(2)

    def select(self, case: RouterCase, choice: Tensor) -> Tensor:
        """Ids int64 [T, K] of the best."""
        return choice.topk(case.top_k, dim=1).indices

    def weigh(self, case: RouterCase, picked: Tensor) -> Tensor:
        """Weights from the scores of the selected experts [T, K]."""
        if not case.normalised:
            return picked
        return picked / (picked.sum(1, keepdim=True) + (EPSILON if case.biased else 0.0))


class TorchArgmax(Router):
    """The best expert K times, as one warp a token does it; softmax over the selected logits; kept groups side by side."""

    name = "torch_argmax"

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        raw = logits.float()
        choice = raw if bias is None else torch.sigmoid(raw) + bias.float()
        members = torch.arange(case.num_experts, device=raw.device).expand(raw.shape)
        if case.num_groups > 1:
            members = self.members(case, choice)
        chosen = members.gather(1, self.select(case, choice.gather(1, members)))
        ids.copy_(chosen)
        weights.copy_(self.weigh(case, raw, raw.gather(1, chosen)) * case.scaling_factor)

    def members(self, case: RouterCase, choice: Tensor) -> Tensor:
        """Ids [T, topk_groups * E / G] of the experts in the kept groups."""
        best = torch.sort(choice.view(-1, case.num_groups, case.group_size), dim=2, descending=True).values
        kept = self.select(case, best[:, :, 0] + best[:, :, 1], case.topk_groups)
        inside = torch.arange(case.group_size, device=choice.device)
        return (kept[:, :, None] * case.group_size + inside).flatten(1)

    def select(self, case: RouterCase, choice: Tensor, count: int | None = None) -> Tensor:
        """Positions [T, count] of the best; NaN and -inf rank last, but before what was selected already."""
        open_ = torch.nan_to_num(choice, nan=torch.finfo(torch.float32).min)  # -inf becomes the same
        found = []
        for _ in range(count or case.top_k):
            found.append(open_.argmax(1, keepdim=True))
            open_ = open_.scatter(1, found[-1], -torch.inf)
        return torch.cat(found, 1)

    def weigh(self, case: RouterCase, logits: Tensor, picked: Tensor) -> Tensor:
        """Weights from the logits [T, E] and those of the selected experts [T, K]."""
        if case.method == "renormalize":
            return torch.softmax(picked, 1)
        if case.method == "softmax_topk":
            return torch.exp(picked - torch.logsumexp(logits, 1, keepdim=True))
        weights = torch.sigmoid(picked)
        return weights / (weights.sum(1, keepdim=True) + EPSILON) if case.normalised else weights
