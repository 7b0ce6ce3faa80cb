"""Triton kernels compiled for a GPU that need not be there."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from moeguard.backends.triton_moe import kernels
from moeguard.backends.triton_moe.tactics import SCHEMES, Tactic, Tile

ELEMENTS = {"bf16": "bf16", "fp16": "fp16", "fp8_per_tensor": "fp8e4nv", "fp8_block": "fp8e4nv"}
OPERANDS = ("x_ptr", "gate_ptr", "up_ptr", "inter_ptr", "down_ptr")


def compile_gate_up(recipe: str, tactic: Tactic, *, arch: int = 90) -> str:
    """PTX of the gate/up product, gated, with even extents."""
    return _compile(kernels.gate_up, recipe, tactic, tactic.gate_up, {"GATED": True}, arch)


def compile_down(recipe: str, tactic: Tactic, *, arch: int = 90) -> str:
    """PTX of the down product with even extents."""
    return _compile(kernels.down, recipe, tactic, tactic.down, {}, arch)


def _compile(kernel: Any, recipe: str, tactic: Tactic, tile: Tile, extra: dict[str, Any], arch: int) -> str:
    constants = {"SCHEME": SCHEMES[recipe], "WIDE": tactic.wide, "UNIT": 16 if SCHEMES[recipe] else 8, "RAGGED": False,
                 "BLOCK_M": tactic.m, "BLOCK_N": tile.n, "BLOCK_K": tile.k, "INTERPRETED": False, **extra}
    signature: dict[str, str] = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            kinds = {"order_ptr": "i64", "block_ptr": "i32"}
            signature[name] = "*" + kinds.get(name, ELEMENTS[recipe] if name in OPERANDS else "fp32")
        else:
            signature[name] = "fp32" if name in ("alpha", "beta", "limit") else "i32"
    places = {name: (index,) for index, name in enumerate(kernel.arg_names)}
    source = ASTSource(kernel, signature, {places[name]: value for name, value in constants.items()},
                       {places[name]: [["tt.divisibility", 16]] for name in signature if name.endswith("_ptr")})
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
    return str(triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["ptx"])
