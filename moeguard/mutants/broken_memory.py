"""Mutants that touch memory they must not touch, or trust memory that nobody initialised."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.mutants.base import Call, Mutant, Prepared, Slots, Trigger, rounded
from moeguard.tensors.operand import Batch

OUT_OF_BOUNDS = frozenset({"out_of_bounds_write"})
MUTATED = frozenset({"input_mutated"})
#: Elements of one vector store.
VECTOR = 8


def beyond(out: Tensor, row: int, column: int, count: int = 1) -> Tensor:
    """``count`` elements of the storage of ``out`` [T, H] from ``row``, ``column`` on, whatever its bounds."""
    return out.as_strided((count,), (1,), out.storage_offset() + row * out.stride(0) + column)


class PastEnd(Mutant):
    """Writes one element past the end of the output (flashinfer#1565)."""

    name = "mutant_past_end"
    expected: ClassVar[frozenset[str]] = OUT_OF_BOUNDS

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value)
        beyond(call.out, value.shape[0] - 1, call.out.stride(0)).zero_()


class BeforeStart(Mutant):
    """Writes one element before the start of the output: a row index of -1 (vllm-gguf-plugin#130)."""

    name = "mutant_before_start"
    expected: ClassVar[frozenset[str]] = OUT_OF_BOUNDS

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value)
        beyond(call.out, 0, -1).zero_()


class RowGap(Mutant):
    """Writes into the gap after each row of a strided output."""

    name = "mutant_row_gap"
    expected: ClassVar[frozenset[str]] = OUT_OF_BOUNDS
    trigger: ClassVar[Trigger] = {"layout": {"kind": "noncontiguous"}}

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value)
        if call.out.stride(0) > value.shape[1]:
            beyond(call.out, 0, value.shape[1]).zero_()


class VectorTail(Mutant):
    """The last row's vector store is not masked: up to seven elements past H when H is no multiple of eight."""

    name = "mutant_vector_tail"
    expected: ClassVar[frozenset[str]] = OUT_OF_BOUNDS
    trigger: ClassVar[Trigger] = {"shape": {"hidden_size": 100}}

    def write(self, call: Call, value: Tensor) -> None:
        rows, width = value.shape
        call.out.copy_(value)
        beyond(call.out, rows - 1, width, -width % VECTOR).zero_()


class OutStrideIgnored(Mutant):
    """Takes a strided output for a contiguous one."""

    name = "mutant_out_stride_ignored"
    expected: ClassVar[frozenset[str]] = frozenset({"out_of_bounds_write", "unwritten_output"})
    trigger: ClassVar[Trigger] = {"layout": {"kind": "noncontiguous"}}

    def write(self, call: Call, value: Tensor) -> None:
        call.out.as_strided(value.shape, (value.shape[1], 1)).copy_(value)


class InputStrideIgnored(Mutant):
    """Takes a strided input for a contiguous one."""

    name = "mutant_input_stride_ignored"
    expected: ClassVar[frozenset[str]] = frozenset({"mismatch"})
    trigger: ClassVar[Trigger] = {"layout": {"kind": "noncontiguous"}}

    def inputs(self, call: Call) -> Tensor:
        x = call.batch.x
        dense = x.data.as_strided(x.data.shape, (x.data.shape[1], 1))
        return rounded(type(x)(dense, x.scale, x.global_scale, x.format).dequantize(), call.numerics.input, None)


class InputScaled(Mutant):
    """Scales the input in place and forgets to undo it (vllm#28939)."""

    name = "mutant_input_scaled"
    expected: ClassVar[frozenset[str]] = MUTATED

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value)
        x = call.batch.x.data
        x.copy_((x.float() * 0.5).to(x.dtype))


class InputPaddingZeroed(Mutant):
    """Zeroes the padding between the caller's input rows so that vector loads need no mask."""

    name = "mutant_input_padding_zeroed"
    expected: ClassVar[frozenset[str]] = MUTATED
    trigger: ClassVar[Trigger] = {"layout": {"kind": "nan_padding"}}

    def inputs(self, call: Call) -> Tensor:
        padding(call.batch.x.data).copy_(torch.zeros(()))
        return super().inputs(call)


class IdsSorted(Mutant):
    """Sorts ``topk_ids`` in place."""

    name = "mutant_ids_sorted"
    expected: ClassVar[frozenset[str]] = MUTATED

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value)
        call.ids.copy_(call.ids.reshape(-1).sort().values.view_as(call.ids))


class RouterWeightsNormalised(Mutant):
    """Normalises ``topk_weights`` in place on a copy-free path."""

    name = "mutant_router_weights_normalised"
    expected: ClassVar[frozenset[str]] = MUTATED
    trigger: ClassVar[Trigger] = {"routing": {"method": "softmax_topk"}}

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value)
        call.router_weights.div_(call.router_weights.sum(1, keepdim=True))


class WeightsModified(Mutant):
    """Re-encodes one row of the resident weights on every call."""

    name = "mutant_weights_modified"
    expected: ClassVar[frozenset[str]] = MUTATED

    def write(self, call: Call, value: Tensor) -> None:
        call.out.copy_(value)
        row = call.prepared.source.down.data[0, 0]
        row.copy_((row.float() + 1.0).to(row.dtype))


class WorkspaceAssumedZero(Mutant):
    """Accumulates into the caller's workspace without zeroing it (vllm#20167)."""

    name = "mutant_workspace_assumed_zero"
    expected: ClassVar[frozenset[str]] = frozenset({"workspace_dependence", "non_finite"})

    def workspace_bytes(self, prepared: Prepared, batch: Batch) -> int:
        return 4 * math.prod(batch.x.shape)

    def write(self, call: Call, value: Tensor) -> None:
        if call.workspace is not None:
            value = call.workspace.view(torch.float32).view(value.shape).add_(value)
        call.out.copy_(value)


class WorkspaceForeignSlots(Mutant):
    """Slots of other ranks are never written to the workspace, yet they are summed (vllm#46408)."""

    name = "mutant_workspace_foreign_slots"
    expected: ClassVar[frozenset[str]] = frozenset({"workspace_dependence", "non_finite"})
    trigger: ClassVar[Trigger] = {"parallel": {"ep_size": 2, "ep_rank": 1}}

    def workspace_bytes(self, prepared: Prepared, batch: Batch) -> int:
        assert batch.topk_ids is not None
        return 4 * batch.topk_ids.numel() * batch.x.shape[1]

    def combine(self, call: Call, slots: Slots, outputs: Tensor) -> Tensor:
        if call.workspace is None:
            return super().combine(call, slots, outputs)
        table = call.workspace.view(torch.float32).view(*call.ids.shape, outputs.shape[1])
        table.view(-1, outputs.shape[1])[slots.slot] = outputs
        return (table * call.router_weights[:, :, None]).sum(1)


class WorkspaceOrder(Mutant):
    """Reads a scheduling flag that nobody wrote: what the workspace held decides the order of a narrow combine."""

    name = "mutant_workspace_order"
    expected: ClassVar[frozenset[str]] = frozenset({"workspace_dependence"})
    trigger: ClassVar[Trigger] = {"shape": {"top_k": 3}}

    def workspace_bytes(self, prepared: Prepared, batch: Batch) -> int:
        return 16

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        return replace(Numerics.of(case.recipe), combine="output")

    def ranks(self, call: Call, top_k: int) -> list[int]:
        order = super().ranks(call, top_k)
        return order[::-1] if call.workspace is not None and int(call.workspace[0]) > 127 else order


class WorkspaceOverrun(Mutant):
    """Declares a workspace without its last row and writes that row all the same (vllm#20392)."""

    name = "mutant_workspace_overrun"
    expected: ClassVar[frozenset[str]] = OUT_OF_BOUNDS

    def workspace_bytes(self, prepared: Prepared, batch: Batch) -> int:
        return 4 * math.prod(batch.x.shape)

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        super().run(prepared, batch, out, tactic=tactic, workspace=workspace)
        if workspace is not None and workspace.numel():
            workspace.as_strided((4,), (1,), workspace.storage_offset() + workspace.numel()).zero_()


def padding(data: Tensor) -> Tensor:
    """The gaps after the rows of ``data`` [T, H]: [T, stride - H]."""
    rows, width = data.shape
    return data.as_strided((rows, data.stride(0) - width), (data.stride(0), 1), data.storage_offset() + width)


BROKEN_MEMORY: tuple[type[Mutant], ...] = (
    PastEnd, BeforeStart, RowGap, VectorTail, OutStrideIgnored, InputStrideIgnored, InputScaled, InputPaddingZeroed,
    IdsSorted, RouterWeightsNormalised, WeightsModified, WorkspaceAssumedZero, WorkspaceForeignSlots, WorkspaceOrder,
    WorkspaceOverrun)
