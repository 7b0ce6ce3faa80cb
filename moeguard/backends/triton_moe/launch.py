"""The host side: alignment, workspace, and the launches of one call. Importing this module imports triton."""

from __future__ import annotations

import math

import triton
from torch import Tensor

from moeguard.backends.triton_moe import kernels
from moeguard.backends.triton_moe.alignment import Alignment, align
from moeguard.backends.triton_moe.arithmetic import ACTIVATIONS
from moeguard.backends.triton_moe.compiled import loaded
from moeguard.backends.triton_moe.layout import Prepared, load_unit
from moeguard.backends.triton_moe.tactics import Tactic, Tile
from moeguard.backends.triton_moe.workspace import Sizes, carve
from moeguard.tensors.operand import Batch

#: Columns of one program of the finalize kernel, at most.
FINALIZE_COLUMNS = 1024
#: Blocks of 128 that one program of the quantisation takes, at most.
QUANTIZE_GROUPS = 8


def launch(prepared: Prepared, batch: Batch, out: Tensor, tactic: Tactic, sizes: Sizes,
           workspace: Tensor | None, *, interpreted: bool) -> Tactic:
    """Write the answer into ``out`` [T, H]; T >= 1. Returns the tactic made of what was launched.

    ``out`` has last stride 1. Raises ValueError when ``workspace`` is smaller than ``sizes`` ask for.
    """
    assert batch.topk_ids is not None and batch.topk_weights is not None
    ids, weights = batch.topk_ids.contiguous(), batch.topk_weights.contiguous()
    case, x = prepared.case, batch.x.data
    if x.stride(1) != 1 and x.shape[1] > 1:
        x = x.contiguous()
    parts = carve(sizes, workspace, x.device)
    alignment = align(ids, case.first_expert, prepared.experts, tactic.m)
    x_scale = prepared.nothing if batch.x.scale is None else batch.x.scale
    if prepared.scheme == 2:
        _quantize(x, parts["codes"], parts["scales"], interpreted)
        x, x_scale = parts["codes"], parts["scales"]
    inter_scale = parts.get("inter_scales", prepared.nothing)
    first = _gate_up(prepared, x, x_scale, parts["inter"], inter_scale, alignment, ids.shape[1], tactic, interpreted)
    second, splits = _down(prepared, parts["inter"], inter_scale, parts["partial"], alignment, tactic, interpreted)
    _finalize(prepared, parts["partial"], ids, weights, out, interpreted)
    return Tactic(alignment.block_m, first, second, splits, tactic.group, tactic.wide)


def _quantize(x: Tensor, codes: Tensor, scales: Tensor, interpreted: bool) -> None:
    blocks = scales.shape[1]
    groups = min(QUANTIZE_GROUPS, triton.next_power_of_2(blocks))
    kernels.quantize_rows[(x.shape[0], triton.cdiv(blocks, groups))](
        x, codes, scales, x.shape[1], x.stride(0), blocks, GROUPS=groups, INTERPRETED=interpreted, num_warps=4,
        enable_fp_fusion=True)


def _gate_up(prepared: Prepared, x: Tensor, x_scale: Tensor, inter: Tensor, inter_scale: Tensor, alignment: Alignment,
             top_k: int, tactic: Tactic, interpreted: bool) -> Tile:
    tile, activation = tactic.gate_up, prepared.case.activation
    blocks, stride = alignment.blocks.shape[1], inter.stride(0)
    unit = load_unit(x.element_size(), prepared.hidden, prepared.inter, x.stride(0) if x.shape[0] > 1 else 0)
    loaded(kernels.gate_up[(blocks * triton.cdiv(prepared.inter, tile.n),)](
        x, x_scale, prepared.gate, prepared.up, prepared.gate_scale, prepared.up_scale, prepared.gate_bias,
        prepared.up_bias, prepared.static_scale, inter, inter_scale, alignment.order, alignment.blocks,
        prepared.hidden // unit, prepared.inter // unit, (x.stride(0) if x.shape[0] > 1 else 0) // unit, stride // unit,
        blocks, top_k, tactic.group, int(prepared.gate_scale.numel() > 1), int(prepared.case.weights.bias),
        ACTIVATIONS[activation.kind], 1.702 if activation.alpha is None else activation.alpha,
        1.0 if activation.beta is None else activation.beta, math.inf if activation.limit is None else activation.limit,
        SCHEME=prepared.scheme, GATED=activation.gated, WIDE=tactic.wide, UNIT=unit, RAGGED=prepared.hidden % tile.k != 0,
        BLOCK_M=tactic.m, BLOCK_N=tile.n, BLOCK_K=tile.k, INTERPRETED=interpreted, num_warps=tile.warps,
        num_stages=tile.stages, enable_fp_fusion=True))
    return Tile(tile.n, tile.k, tile.warps, tile.stages)


def _down(prepared: Prepared, inter: Tensor, inter_scale: Tensor, partial: Tensor, alignment: Alignment, tactic: Tactic,
          interpreted: bool) -> tuple[Tile, int]:
    tile = tactic.down
    splits, slots, hidden = partial.shape
    blocks, stride = alignment.blocks.shape[1], inter.stride(0)
    unit = load_unit(inter.element_size(), hidden, prepared.inter)
    loaded(kernels.down[(blocks * triton.cdiv(hidden, tile.n), splits)](
        inter, inter_scale, prepared.static_scale, prepared.down, prepared.down_scale, prepared.down_bias, partial,
        alignment.order, alignment.blocks, hidden // unit, prepared.inter // unit, stride // unit, blocks, slots, splits,
        tactic.group, int(prepared.down_scale.numel() > 1), int(prepared.case.weights.bias),
        SCHEME=prepared.scheme, WIDE=tactic.wide, UNIT=unit, RAGGED=prepared.inter % tile.k != 0, BLOCK_M=tactic.m,
        BLOCK_N=tile.n, BLOCK_K=tile.k, INTERPRETED=interpreted, num_warps=tile.warps, num_stages=tile.stages,
        enable_fp_fusion=True))
    return Tile(tile.n, tile.k, tile.warps, tile.stages), splits


def _finalize(prepared: Prepared, partial: Tensor, ids: Tensor, weights: Tensor, out: Tensor, interpreted: bool) -> None:
    splits, slots, hidden = partial.shape
    columns = min(FINALIZE_COLUMNS, triton.next_power_of_2(hidden))
    kernels.finalize[(ids.shape[0], triton.cdiv(hidden, columns))](
        partial, ids, weights, out, hidden, ids.shape[1], slots, splits, prepared.case.first_expert, prepared.experts,
        out.stride(0), BLOCK=columns, INTERPRETED=interpreted, num_warps=4,
        enable_fp_fusion=True)
