"""Mutants that send tokens to the wrong place, or weigh what comes back wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.mutants.base import Call, Mutant, Slots, Trigger

MISMATCH = frozenset({"mismatch"})
METAMORPHIC = frozenset({"metamorphic"})


class LastExpertDropped(Mutant):
    """A bound of E - 1 drops the last expert (vllm#51632)."""

    name = "mutant_last_expert_dropped"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def localise(self, call: Call, ids: Tensor) -> Tensor:
        local = super().localise(call, ids)
        return torch.where(local == call.case.experts_local - 1, -1, local)


class WeakestDropped(Mutant):
    """Uses K - 1 of the K experts of a token: the one with the least weight is lost (vllm#51824 class)."""

    name = "mutant_weakest_dropped"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def factors(self, call: Call) -> Tensor:
        weights = call.router_weights
        if weights.shape[1] == 1:
            return weights
        return weights.scatter(1, weights.argmin(1, keepdim=True), 0.0)


class WeightsTwice(Mutant):
    """Applies the router weights in the expert and again in the combine (vllm#31609)."""

    name = "mutant_weights_twice"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def factors(self, call: Call) -> Tensor:
        return call.router_weights.square()


class WeightsOnInput(Mutant):
    """Scales the input of the experts in place of their output (flashinfer#2280)."""

    name = "mutant_weights_on_input"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def gather(self, call: Call, slots: Slots) -> Tensor:
        return super().gather(call, slots) * call.router_weights.reshape(-1)[slots.slot, None]

    def factors(self, call: Call) -> Tensor:
        return torch.ones_like(call.router_weights)


class WeightClamped(Mutant):
    """Clamps router weights at one, which softmax never exceeds but a routed scaling factor does."""

    name = "mutant_weight_clamped"
    expected: ClassVar[frozenset[str]] = METAMORPHIC

    def factors(self, call: Call) -> Tensor:
        return call.router_weights.clamp(max=1.0)


class WeightsRenormalised(Mutant):
    """Renormalises router weights that are normalised already; scaled or zeroed ones come out wrong."""

    name = "mutant_weights_renormalised"
    expected: ClassVar[frozenset[str]] = METAMORPHIC

    def factors(self, call: Call) -> Tensor:
        return call.router_weights / call.router_weights.sum(1, keepdim=True).clamp(min=1e-20)


class ZeroWeightIsOne(Mutant):
    """Takes a router weight of exactly zero for a missing one and uses one in its place."""

    name = "mutant_zero_weight_is_one"
    expected: ClassVar[frozenset[str]] = METAMORPHIC

    def factors(self, call: Call) -> Tensor:
        return torch.where(call.router_weights == 0, 1.0, call.router_weights)


class SortedIdsAssumed(Mutant):
    """Sorts the slots by expert but gathers tokens in their old order: right only for ids that arrive sorted."""

    name = "mutant_sorted_ids_assumed"
    expected: ClassVar[frozenset[str]] = METAMORPHIC
    trigger: ClassVar[Trigger] = {"routing": {"kind": "balanced"}, "inputs": {"kind": "normal"},
                                  "shape": {"num_tokens": 8, "num_experts": 8, "top_k": 1}}

    def gather(self, call: Call, slots: Slots) -> Tensor:
        return self.inputs(call)[slots.token.sort().values]


class OffsetTwice(Mutant):
    """Subtracts the rank's first expert from ids that are local already (sglang#12701 class)."""

    name = "mutant_offset_twice"
    expected: ClassVar[frozenset[str]] = frozenset({"mismatch", "metamorphic"})
    trigger: ClassVar[Trigger] = {"parallel": {"ep_size": 2, "ep_rank": 1}}

    def localise(self, call: Call, ids: Tensor) -> Tensor:
        return super().localise(call, ids) - call.case.first_expert


class ForeignIdsWrap(Mutant):
    """Ids of other ranks are taken modulo the local expert count (sglang#12701)."""

    name = "mutant_foreign_ids_wrap"
    expected: ClassVar[frozenset[str]] = frozenset({"mismatch", "metamorphic"})
    trigger: ClassVar[Trigger] = {"parallel": {"ep_size": 2, "ep_rank": 0}}

    def localise(self, call: Call, ids: Tensor) -> Tensor:
        valid = (ids >= 0) & (ids < call.case.shape.num_experts)
        return torch.where(valid, ids % call.case.experts_local, -1)


class SingleToken(Mutant):
    """The path for one single token takes the router weights in reverse order."""

    name = "mutant_single_token"
    expected: ClassVar[frozenset[str]] = METAMORPHIC
    trigger: ClassVar[Trigger] = {"shape": {"num_tokens": 12, "top_k": 3}}

    def factors(self, call: Call) -> Tensor:
        return call.router_weights if call.ids.shape[0] > 1 else call.router_weights.flip(1)


class OnlyFirstRow(Mutant):
    """Of an expert's slots only the first is kept apart; the second one reuses its row (vllm-xpu-kernels#453)."""

    name = "mutant_only_first_row"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def gather(self, call: Call, slots: Slots) -> Tensor:
        rows = super().gather(call, slots)
        for _, part in slots.groups:
            rows[part][1:2] = rows[part][:1]
        return rows


class ScatterShifted(Mutant):
    """With more than one expert a token, results are scattered to the neighbouring slot (flashinfer#2629)."""

    name = "mutant_scatter_shifted"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def combine(self, call: Call, slots: Slots, outputs: Tensor) -> Tensor:
        if slots.top_k > 1:
            slots = replace(slots, slot=(slots.slot + 1) % call.ids.numel())
        return super().combine(call, slots, outputs)


class ExpertOrder(Mutant):
    """Two experts share one tile and swap their weights: the row map counts from the wrong end (meta-applied-ai#25)."""

    name = "mutant_expert_order"
    expected: ClassVar[frozenset[str]] = MISMATCH

    def matrix(self, call: Call, which: str, expert: int) -> Tensor:
        return super().matrix(call, which, call.case.experts_local - 1 - expert if expert < 2 else expert)


BROKEN_ROUTING: tuple[type[Mutant], ...] = (
    LastExpertDropped, WeakestDropped, WeightsTwice, WeightsOnInput, WeightClamped, WeightsRenormalised,
    ZeroWeightIsOne, SortedIdsAssumed, OffsetTwice, ForeignIdsWrap, SingleToken, OnlyFirstRow, ScatterShifted,
    ExpertOrder)
