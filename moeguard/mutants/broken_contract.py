"""Mutants that break contracts of unusual calls: duplicate and invalid ids, NaN logits, no tokens, row gaps, foreign layouts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.backends.protocol import Refused, Traits
from moeguard.core.case import Case
from moeguard.layouts.contract import Probe
from moeguard.layouts.scales import SWIZZLED_128X4
from moeguard.mutants.base import Call, Mutant, Prepared, Slots, Trigger
from moeguard.tensors.operand import Batch, Operand, Weights

CONTRACT = frozenset({"routing_contract"})
DUPLICATES = {"routing": {"kind": "duplicate_ids"}, "shape": {"top_k": 3}}
INVALID = {"routing": {"kind": "invalid_ids"}}
NO_TOKENS = {"shape": {"num_tokens": 0}}


def first_of_duplicates(ids: Tensor) -> Tensor:
    """Bool [T, K]: slots whose expert does not occur earlier in the same row."""
    same = ids[:, :, None] == ids[:, None, :]
    earlier = torch.ones_like(same).tril(-1)
    return ~(same & earlier).any(2)


class NegativeIdWraps(Mutant):
    """An id of -1 wraps to the last expert, though ``drop`` is declared (vllm#46408)."""

    name = "mutant_negative_id_wraps"
    expected: ClassVar[frozenset[str]] = CONTRACT
    trigger: ClassVar[Trigger] = INVALID

    def localise(self, call: Call, ids: Tensor) -> Tensor:
        return super().localise(call, torch.where(ids == -1, call.case.first_expert + call.case.experts_local - 1, ids))


class LargeIdClamps(Mutant):
    """Ids from E on are clamped to the last expert, though ``drop`` is declared."""

    name = "mutant_large_id_clamps"
    expected: ClassVar[frozenset[str]] = CONTRACT
    trigger: ClassVar[Trigger] = INVALID

    def localise(self, call: Call, ids: Tensor) -> Tensor:
        return super().localise(call, ids.clamp(max=call.case.shape.num_experts - 1))


class InvalidIdsSilent(Mutant):
    """Declares invalid ids unsupported, but answers wrongly in silence."""

    name = "mutant_invalid_ids_silent"
    expected: ClassVar[frozenset[str]] = CONTRACT
    trigger: ClassVar[Trigger] = INVALID

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="unsupported")

    def localise(self, call: Call, ids: Tensor) -> Tensor:
        valid = (ids >= 0) & (ids < call.case.shape.num_experts)
        return super().localise(call, torch.where(valid, ids, 0))


class DuplicatesDropped(Mutant):
    """Of an expert that a token lists twice, only the first slot counts (flashinfer#3011)."""

    name = "mutant_duplicates_dropped"
    expected: ClassVar[frozenset[str]] = CONTRACT
    trigger: ClassVar[Trigger] = DUPLICATES

    def factors(self, call: Call) -> Tensor:
        return call.router_weights * first_of_duplicates(call.ids)


class DuplicatesBeyondFused(Mutant):
    """Duplicates are dropped only beyond 256 tokens, where another sort runs (flashinfer#3011)."""

    name = "mutant_duplicates_beyond_fused"
    expected: ClassVar[frozenset[str]] = CONTRACT
    trigger: ClassVar[Trigger] = {"routing": {"kind": "duplicate_ids"}, "shape": {"num_tokens": 300, "top_k": 2}}

    def factors(self, call: Call) -> Tensor:
        if call.ids.shape[0] <= 256:
            return call.router_weights
        return call.router_weights * first_of_duplicates(call.ids)


class DuplicatesSilent(Mutant):
    """Declares duplicate ids unsupported, but answers wrongly in silence."""

    name = "mutant_duplicates_silent"
    expected: ClassVar[frozenset[str]] = CONTRACT
    trigger: ClassVar[Trigger] = DUPLICATES

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="drop", duplicate_ids="unsupported")

    def factors(self, call: Call) -> Tensor:
        return call.router_weights * first_of_duplicates(call.ids)


class RefusesLate(Mutant):
    """Refuses invalid ids only after it has written its answer."""

    name = "mutant_refuses_late"
    expected: ClassVar[frozenset[str]] = CONTRACT
    trigger: ClassVar[Trigger] = INVALID

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="unsupported")

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value)
        if bool(((call.ids < 0) | (call.ids >= call.case.shape.num_experts)).any()):
            raise Refused("invalid expert id")


class RefusesWithLookupError(Mutant):
    """Refuses duplicate ids with an exception that is no refusal."""

    name = "mutant_refuses_with_lookup_error"
    expected: ClassVar[frozenset[str]] = CONTRACT
    trigger: ClassVar[Trigger] = DUPLICATES

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="drop", duplicate_ids="unsupported")

    def route(self, call: Call) -> Slots:
        if not bool(first_of_duplicates(call.ids).all()):
            raise KeyError("expert")
        return super().route(call)


class NanLogitsLeak(Mutant):
    """Reads the router's logits again, so a row of NaN logits becomes a row of NaN (vllm#39391)."""

    name = "mutant_nan_logits_leak"
    expected: ClassVar[frozenset[str]] = CONTRACT
    trigger: ClassVar[Trigger] = {"routing": {"kind": "nan_logits"}, "shape": {"top_k": 3}}

    def factors(self, call: Call) -> Tensor:
        assert call.batch.router_logits is not None
        return call.router_weights + call.batch.router_logits.sum(1, keepdim=True) * 0.0


class ZeroTokensRaise(Mutant):
    """Asserts that there are tokens, though an idle rank has none (sglang#38773)."""

    name = "mutant_zero_tokens_raise"
    expected: ClassVar[frozenset[str]] = frozenset({"crash", "routing_contract"})
    trigger: ClassVar[Trigger] = NO_TOKENS

    def begin(self, prepared: Prepared, batch: Batch, out: Tensor, tactic: Hashable | None,
              workspace: Tensor | None) -> Call:
        assert batch.x.data.shape[0] > 0, "empty input"
        return super().begin(prepared, batch, out, tactic, workspace)


class ZeroTokensWrite(Mutant):
    """Launches one block for no tokens at all, which stores its first row."""

    name = "mutant_zero_tokens_write"
    expected: ClassVar[frozenset[str]] = frozenset({"out_of_bounds_write", "routing_contract"})
    trigger: ClassVar[Trigger] = NO_TOKENS

    def begin(self, prepared: Prepared, batch: Batch, out: Tensor, tactic: Hashable | None,
              workspace: Tensor | None) -> Call:
        if not out.shape[0]:
            out.as_strided((8,), (1,), out.storage_offset()).zero_()
        return super().begin(prepared, batch, out, tactic, workspace)


class RowGapsIgnored(Mutant):
    """Reads rows with gaps as if there were none, though it declares that it refuses them."""

    name = "mutant_row_gaps_ignored"
    expected: ClassVar[frozenset[str]] = frozenset({"layout_contract"})
    trigger: ClassVar[Trigger] = {"layout": {"kind": "noncontiguous"}}

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="drop", noncontiguous="unsupported")

    def begin(self, prepared: Prepared, batch: Batch, out: Tensor, tactic: Hashable | None,
              workspace: Tensor | None) -> Call:
        data = batch.x.data
        dense = replace(batch.x, data=data.as_strided(data.shape, (data.shape[1], 1), data.storage_offset()))
        return super().begin(prepared, replace(batch, x=dense), out, tactic, workspace)


class ForeignLayoutTaken(Mutant):
    """Takes weights that were packed for an earlier release, high nibble first, for its own (flashinfer#3334)."""

    name = "mutant_foreign_layout_taken"
    expected: ClassVar[frozenset[str]] = frozenset({"layout_contract"})
    trigger: ClassVar[Trigger] = {"recipe": "mxfp4_bf16", "shape": {"hidden_size": 256, "intermediate_size": 256}}

    def foreign_layouts(self, weights: Weights, case: Case) -> Mapping[str, Prepared]:
        def packed(operand: Operand) -> Operand:
            return replace(operand, data=(operand.data >> 4) | (operand.data << 4))

        if not weights.gate.packed:
            return {}
        up = None if weights.up is None else packed(weights.up)
        earlier = replace(weights, gate=packed(weights.gate), up=up, down=packed(weights.down))
        return {"packed as for release 1": self.prepare(earlier, case)}


class LayoutPairSwapped(Mutant):
    """Swaps two rows when it swizzles scales, as a release that changed the layout of its helper without a word."""

    name = "mutant_layout_pair_swapped"
    expected: ClassVar[frozenset[str]] = frozenset({"layout_contract"})

    def layout_probes(self, case: Case) -> Mapping[str, Probe]:
        def swizzle(scale: Tensor) -> Tensor:
            moved = scale.clone()
            moved[:, [3, 35]] = scale[:, [35, 3]]
            return SWIZZLED_128X4.place(moved)

        return {"scale swizzle": Probe(SWIZZLED_128X4, swizzle, (1, 128, 8))}


BROKEN_CONTRACT: tuple[type[Mutant], ...] = (
    NegativeIdWraps, LargeIdClamps, InvalidIdsSilent, DuplicatesDropped, DuplicatesBeyondFused, DuplicatesSilent,
    RefusesLate, RefusesWithLookupError, NanLogitsLeak, ZeroTokensRaise, ZeroTokensWrite, RowGapsIgnored,
    ForeignLayoutTaken, LayoutPairSwapped)
