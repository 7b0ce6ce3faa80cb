"""Routers with one defect each; ``expected``: the rule that must find it."""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.backends.routers.torch_routers import TorchArgmax, TorchScores
from moeguard.core.router import Precision, RouterCase


class MaskedWithZero(TorchScores):
    """Groups that are not kept count as 0: with biased scores below zero they win (flashinfer#4639, flashinfer#2168)."""

    name, expected = "router_masked_with_zero", "set"

    def masked(self, case: RouterCase, choice: Tensor, fill: float = 0.0) -> Tensor:
        return super().masked(case, choice, 0.0)


class GroupTopOne(TorchScores):
    """A group counts as much as its best expert, not its two best."""

    name, expected = "router_group_top_one", "set"

    def group_scores(self, grouped: Tensor) -> Tensor:
        return grouped.amax(2)


class InterleavedGroups(TorchScores):
    """Group g holds the experts g, g + G, g + 2G, ... instead of neighbours."""

    name, expected = "router_interleaved_groups", "set"

    def masked(self, case: RouterCase, choice: Tensor, fill: float = -torch.inf) -> Tensor:
        apart = choice.view(-1, case.group_size, case.num_groups).mT.reshape(choice.shape)
        return super().masked(case, apart, fill).view(-1, case.num_groups, case.group_size).mT.reshape(choice.shape)


class FourGroups(TorchArgmax):
    """At most four groups are kept, the number of DeepSeek-V3, whatever is asked (compare flashinfer#1723)."""

    name, expected = "router_four_groups", "set"

    def members(self, case: RouterCase, choice: Tensor) -> Tensor:
        least = -(-case.top_k // case.group_size)
        return super().members(case.model_copy(update={"topk_groups": min(case.topk_groups, max(4, least))}), choice)


class TiesBeyondK(TorchScores):
    """All experts that reach the K-th score are marked, and the first K of them are taken."""

    name, expected = "router_ties_beyond_k", "set"

    def select(self, case: RouterCase, choice: Tensor) -> Tensor:
        marked = choice >= choice.topk(case.top_k, dim=1).values[:, -1:]
        return torch.sort(marked.to(torch.int8), dim=1, descending=True, stable=True).indices[:, : case.top_k]


class PaddedExperts(TorchScores):
    """Experts are padded to a multiple of 32 with zeros, which beat negative logits (compare flashinfer#2822)."""

    name, expected = "router_padded_experts", "range"

    def select(self, case: RouterCase, choice: Tensor) -> Tensor:
        padding = choice.new_zeros(choice.shape[0], -case.num_experts % 32)
        return torch.cat((choice, padding), 1).topk(case.top_k, dim=1).indices

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        choice = self.scores(case, logits.float()) if bias is not None else logits.float()
        if bias is not None:
            choice = choice + bias.float()
        chosen = self.select(case, self.masked(case, choice) if case.num_groups > 1 else choice)
        ids.copy_(chosen)
        picked = self.scores(case, logits.float()).gather(1, chosen.clamp_max(case.num_experts - 1))
        weights.copy_(self.weigh(case, picked) * case.scaling_factor)


class RepeatedForNan(TorchArgmax):
    """``NaN > best`` is false: no expert of a NaN row is ever better than expert 0 (vllm#39391)."""

    name, expected = "router_repeated_for_nan", "repeated"

    def select(self, case: RouterCase, choice: Tensor, count: int | None = None) -> Tensor:
        chosen = super().select(case, choice, count)
        return torch.where(torch.isnan(choice).all(1, keepdim=True), torch.zeros_like(chosen), chosen)


class Bfloat16Scores(TorchScores):
    """Scores are rounded to bfloat16 before they are ranked, without a word of it in ``precision``."""

    name, expected = "router_bfloat16_scores", "set"

    def select(self, case: RouterCase, choice: Tensor) -> Tensor:
        return super().select(case, choice.bfloat16())


class BiasInWeights(TorchScores):
    """The selection bias leaks into the weights."""

    name, expected = "router_bias_in_weights", "weights"

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        super().route(case, logits, bias, ids, weights)
        if bias is not None:
            chosen = ids.long()
            picked = self.scores(case, logits.float()).gather(1, chosen) + bias.float()[chosen]
            weights.copy_(self.weigh(case, picked) * case.scaling_factor)


class CancelledBias(TorchScores):
    """Weights are the biased scores less the bias: next to a bias of 12 little of a sigmoid is left (flashinfer#3946)."""

    name, expected = "router_cancelled_bias", "weights"

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        super().route(case, logits, bias, ids, weights)
        if bias is not None:
            chosen = ids.long()
            picked = (self.scores(case, logits.float()) + bias.float()).gather(1, chosen) - bias.float()[chosen]
            weights.copy_(self.weigh(case, picked) * case.scaling_factor)


class NotRenormalised(TorchScores):
    """Weights are not divided by their sum."""

    name, expected = "router_not_renormalised", "weights"

    def weigh(self, case: RouterCase, picked: Tensor) -> Tensor:
        return picked


class ScalingLost(TorchArgmax):
    """The routed scaling factor is ignored."""

    name, expected = "router_scaling_lost", "weights"

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        super().route(case.model_copy(update={"scaling_factor": 1.0}), logits, bias, ids, weights)


class NoEpsilon(TorchScores):
    """Sigmoids that vanish in float32 are divided by a sum of zero: NaN weights for finite logits (flashinfer#3803)."""

    name, expected = "router_no_epsilon", "finite"

    def scores(self, case: RouterCase, logits: Tensor) -> Tensor:
        return _cancelling(logits) if case.biased else super().scores(case, logits)

    def weigh(self, case: RouterCase, picked: Tensor) -> Tensor:
        return picked / picked.sum(1, keepdim=True) if case.normalised else picked


class VanishingWeights(TorchScores):
    """A sigmoid by way of tanh, declared as such, is zero for far negative logits, and so are all weights of the token."""

    name, expected = "router_vanishing_weights", "sum"

    def precision(self, case: RouterCase) -> Precision:
        return Precision(sigmoid_error=2.0**-23)

    def scores(self, case: RouterCase, logits: Tensor) -> Tensor:
        return _cancelling(logits) if case.biased else super().scores(case, logits)


class ShiftedWeights(TorchArgmax):
    """The weights of a token are right, but belong to other ids of it."""

    name, expected = "router_shifted_weights", "weights"

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        super().route(case, logits, bias, ids, weights)
        weights.copy_(weights.roll(1, 1))


class LastTokenUnwritten(TorchScores):
    """An odd number of tokens: the last one is not written."""

    name, expected = "router_last_token_unwritten", "written"

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        tokens = case.num_tokens // 2 * 2
        super().route(case, logits[:tokens], bias, ids[:tokens], weights[:tokens])


class OneIdTooMany(TorchScores):
    """One id is written behind the last."""

    name, expected = "router_one_id_too_many", "bounds"

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        super().route(case, logits, bias, ids, weights)
        ids.as_strided((1,), (1,), ids.storage_offset() + ids.numel()).zero_()


class LogitsOverwritten(TorchScores):
    """The scores overwrite the logits."""

    name, expected = "router_logits_overwritten", "inputs"

    def route(self, case: RouterCase, logits: Tensor, bias: Tensor | None, ids: Tensor, weights: Tensor) -> None:
        super().route(case, logits, bias, ids, weights)
        logits.copy_(self.scores(case, logits.float()))


def _cancelling(logits: Tensor) -> Tensor:
    """A sigmoid by way of tanh: exact to half a unit of 1, zero from -17 on."""
    return torch.tanh(0.5 * logits) * 0.5 + 0.5


#: Every broken router.
BROKEN_ROUTERS: tuple[type[TorchScores] | type[TorchArgmax], ...] = (
    MaskedWithZero, GroupTopOne, InterleavedGroups, FourGroups, TiesBeyondK, PaddedExperts, RepeatedForNan, Bfloat16Scores,
    BiasInWeights, CancelledBias, NotRenormalised, ScalingLost, NoEpsilon, VanishingWeights, ShiftedWeights,
    LastTokenUnwritten, OneIdTooMany, LogitsOverwritten)
