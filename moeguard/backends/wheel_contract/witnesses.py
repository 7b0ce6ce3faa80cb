"""Pure-torch functions of the wheels that hold the layouts too, though no adapter calls them: each is executed against its rule.

Readers (which undo a layout) are given what the rule lays out, and must return it as it was.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from moeguard.layouts import rows, scales
from moeguard.layouts.contract import Moved, examine
from moeguard.layouts.layout import Layout, flat

#: First release of the table that folds the scales for Hopper, and interleaves those of int4 too.
FOLDED = "0.6.18"
#: As it was given.
ROW_MAJOR = Layout("row-major", "the order of the elements that went in", flat)


@dataclass(frozen=True, slots=True)
class Witness:
    """path: module and name. layout: the rule. shape: of the uint8 tensor that goes in. use: how the function is asked for it.

    reader: the rule that it undoes; then the layout is row-major. since, before: releases that this rule is for.
    """

    path: str
    layout: Layout
    shape: tuple[int, ...]
    use: Callable[[Any, Tensor], Tensor]
    reader: Layout | None = None
    since: str = "0"
    before: str = "99"

    def function(self) -> Any:
        """The function; None where the release does not have it."""
        module, _, name = self.path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            return None

    def examine(self, function: Any) -> Moved | None:
        """None when it keeps to the rule."""
        if self.reader is None:
            return examine(self.layout, lambda data: self.use(function, data), self.shape)
        undone = self.reader
        return examine(self.layout, lambda data: self.use(function, undone.place(data)), self.shape)


def _each(call: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    return lambda function, data: torch.stack([call(function, one) for one in data])


def _indexed(function: Any, data: Tensor) -> Tensor:
    """Lay out by a function that gives the offset of one row and column."""
    _, count, width = data.shape
    result = torch.zeros(-(-count // 128) * 128 * -(-width // 4) * 4 if "128x4" in function.__name__
                         else -(-count // 8) * 8 * -(-width // 4) * 4, dtype=torch.uint8)
    padded = -(-width // 4) * 4
    for row in range(count):
        for column in range(width):
            result[int(function(row, column, padded))] = data[0, row, column]
    return result


def _by_map(function: Any, data: Tensor) -> Tensor:
    result = torch.empty_like(data)
    for row in range(data.shape[1]):
        result[:, function(128, row)] = data[:, row]
    return result


_WEIGHT, _SCALE = (2, 256, 256), (2, 200, 6)
WITNESSES = (
    Witness("flashinfer.fused_moe.core.reorder_rows_for_gated_act_gemm", rows.GATED_ROWS, _WEIGHT, _each(lambda f, one: f(one))),
    Witness("flashinfer.shuffle_matrix_a", rows.SHUFFLED_128, _WEIGHT, _each(lambda f, one: f(one, 128))),
    Witness("flashinfer.shuffle_matrix_a", rows.SHUFFLED_64, _WEIGHT, _each(lambda f, one: f(one, 64))),
    Witness("flashinfer.fused_moe.core.convert_to_block_layout", rows.BLOCK_MAJOR, _WEIGHT,
            _each(lambda f, one: f(one, 128))),
    Witness("flashinfer.fused_moe.core.deinterleave_gated_rows", ROW_MAJOR, _WEIGHT, lambda f, data: torch.stack(
        [f(one, 1) for one in data.view(_WEIGHT)]), rows.GATED_ROWS),
    Witness("flashinfer.fused_moe.prepare._interleave_linear_and_gate", rows.INTERLEAVED_64, _WEIGHT,
            lambda f, data: f(data, 64, 1)),
    Witness("flashinfer.trace.templates.moe._trtllm_unshuffle_weight", ROW_MAJOR, _WEIGHT, lambda f, data: f(
        data.view(_WEIGHT), True).to(torch.uint8), rows.GATED_SHUFFLED_128),
    Witness("flashinfer.prims_ts.batched_gemm.batched_gemm_config.shuffled_matrix_row_index", rows.SHUFFLED_128, (1, 256, 4),
            _by_map),
    Witness("flashinfer.fused_moe.core.interleave_moe_scales_for_sm90_mixed_gemm", scales.SM90_MXFP4, (2, 128, 8),
            lambda f, data: f(data, 32), since=FOLDED),
    Witness("flashinfer.fused_moe.core.interleave_moe_scales_for_sm90_mixed_gemm", scales.SM90_MXFP4_EARLY, (2, 128, 8),
            lambda f, data: f(data, 32), before=FOLDED),
    Witness("flashinfer.fused_moe.core.interleave_moe_scales_for_sm90_mixed_gemm", scales.SM90_INT4, (2, 128, 4),
            lambda f, data: f(data.view(torch.bfloat16), 128), since=FOLDED),
    Witness("flashinfer.trace.templates.gemm._unswizzle_sf_128x4", ROW_MAJOR, (1, 200, 6), lambda f, data: f(data, 200, 6),
            scales.SWIZZLED_128X4),
    Witness("flashinfer.cute_dsl.utils.convert_sf_to_mma_layout", scales.MMA_128X4, (2, 256, 8), lambda f, data: f(
        scales.SWIZZLED_128X4.place(data), 256, 128, 2, 16)),
    Witness("flashinfer.quantization.quantization_cute_dsl_utils.compute_sf_index_swizzled_128x4_gpu", scales.SWIZZLED_128X4,
            (1, 160, 6), _indexed),
    Witness("flashinfer.quantization.quantization_cute_dsl_utils.compute_sf_index_swizzled_8x4_gpu", scales.SWIZZLED_8X4,
            (1, 20, 6), _indexed),
    Witness("flashinfer.fused_moe.cute_dsl.blackwell_sm12x.moe_w4a16_fp4_helpers.swizzle_block_scale", scales.SWIZZLED_128X4,
            _SCALE, lambda f, data: f(data)),
)


def asked(release: str) -> Iterator[dict[str, Any]]:
    """``judged`` for each witness that this release has."""
    for witness in WITNESSES:
        meant = Version(witness.since) <= Version(release) < Version(witness.before)
        function = witness.function() if meant else None
        if function is not None:
            rule = witness.layout if witness.reader is None else witness.reader
            yield judged(witness.path, rule, partial(witness.examine, function))


def judged(function: str, rule: Layout, question: Callable[[], Moved | None]) -> dict[str, Any]:
    """``{"function", "layout", "moved", "refused"}``: both None where the function keeps to the rule, else one sentence."""
    moved = refused = None
    try:
        found = question()
        moved = None if found is None else found.sentence
    except Exception as error:
        refused = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return {"function": function, "layout": rule.name, "moved": moved, "refused": refused}
