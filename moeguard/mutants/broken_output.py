"""Mutants that break the contract of ``out``: parts left unwritten, storage replaced, values returned."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.mutants.base import Call, Mutant, Prepared, Trigger
from moeguard.tensors.operand import Batch

UNWRITTEN = frozenset({"unwritten_output"})
#: Columns of one store tile.
TILE = 64


class OutRebound(Mutant):
    """Rebinds its local name ``out`` to a fresh tensor, so the caller's buffer stays unwritten."""

    name = "mutant_out_rebound"
    expected: ClassVar[frozenset[str]] = UNWRITTEN

    def write(self, call: Call, value: Tensor) -> None:
        out = call.out
        out = value.to(out.dtype)


class TailColumns(Mutant):
    """The store grid uses floor division: columns after the last whole tile are never written (vllm#49087)."""

    name = "mutant_tail_columns"
    expected: ClassVar[frozenset[str]] = UNWRITTEN
    trigger: ClassVar[Trigger] = {"shape": {"hidden_size": 136}}

    def write(self, call: Call, value: Tensor) -> None:
        width = value.shape[1] // TILE * TILE
        call.out[:, :width] = value[:, :width]


class OddTokens(Mutant):
    """Rows are stored in pairs; the second half of an odd pair loses its last column."""

    name = "mutant_odd_tokens"
    expected: ClassVar[frozenset[str]] = UNWRITTEN
    trigger: ClassVar[Trigger] = {"shape": {"num_tokens": 5}}

    def write(self, call: Call, value: Tensor) -> None:
        if value.shape[0] % 2:
            call.out[:-1] = value[:-1]
            call.out[-1, :-1] = value[-1, :-1]
        else:
            call.out.copy_(value)


class ForeignRows(Mutant):
    """Rows of tokens without a local expert are left as they were (vllm#20167, vllm#46408)."""

    name = "mutant_foreign_rows"
    expected: ClassVar[frozenset[str]] = UNWRITTEN
    trigger: ClassVar[Trigger] = {"parallel": {"ep_size": 4, "ep_rank": 1},
                                  "shape": {"num_tokens": 24, "num_experts": 16, "top_k": 1}}

    def write(self, call: Call, value: Tensor) -> None:
        local = self.localise(call, call.ids.long())
        mine = ((local >= 0) & (local < call.case.experts_local)).any(1)
        call.out[mine] = value[mine].to(call.out.dtype)


class AccumulatesIntoOut(Mutant):
    """The combine adds into ``out`` with atomics, but nobody zeroes it first."""

    name = "mutant_accumulates_into_out"
    expected: ClassVar[frozenset[str]] = frozenset({"unwritten_output", "non_finite"})

    def write(self, call: Call, value: Tensor) -> None:
        call.out.add_(value.to(call.out.dtype))


class ReturnsOut(Mutant):
    """Writes ``out`` and returns it as well."""

    name = "mutant_returns_out"
    expected: ClassVar[frozenset[str]] = frozenset({"wrong_return"})

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *,  # type: ignore[override]
            tactic: Hashable | None = None, workspace: Tensor | None = None) -> Tensor:
        super().run(prepared, batch, out, tactic=tactic, workspace=workspace)
        return out


class ReturnsAnswer(Mutant):
    """Returns a new tensor and leaves ``out`` untouched, as functional APIs do."""

    name = "mutant_returns_answer"
    expected: ClassVar[frozenset[str]] = frozenset({"wrong_return", "unwritten_output"})

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *,  # type: ignore[override]
            tactic: Hashable | None = None, workspace: Tensor | None = None) -> Tensor:
        answer = torch.zeros_like(out)
        super().run(prepared, batch, answer, tactic=tactic, workspace=workspace)
        return answer


class OutSet(Mutant):
    """Points the caller's tensor object at new storage with ``set_``; views of the old storage see nothing."""

    name = "mutant_out_set"
    expected: ClassVar[frozenset[str]] = frozenset({"output_alias"})

    def write(self, call: Call, value: Tensor) -> None:
        call.out.set_(value.to(call.out.dtype))  # type: ignore[call-overload]


class OutDataReplaced(Mutant):
    """Assigns ``out.data``: the same object, other storage."""

    name = "mutant_out_data_replaced"
    expected: ClassVar[frozenset[str]] = frozenset({"output_alias"})

    def write(self, call: Call, value: Tensor) -> None:
        call.out.data = value.to(call.out.dtype)


BROKEN_OUTPUT: tuple[type[Mutant], ...] = (
    OutRebound, TailColumns, OddTokens, ForeignRows, AccumulatesIntoOut, ReturnsOut, ReturnsAnswer, OutSet,
    OutDataReplaced)
