"""A FlashInfer whose calls are bound to the real signatures instead of being made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from moeguard.backends.flashinfer_blackwell import entries
from moeguard.backends.flashinfer_blackwell.entries import Entry
from moeguard.backends.flashinfer_blackwell.library import Library
from moeguard.layouts.scales import SWIZZLED_128X4


class Mismatch(Exception):
    """A call does not bind to the real signature; the text names the function, the version and what does not fit."""


class Recorder(Library):
    """The release that is first on the path. Helpers that are pure torch are executed; for kernels stands what has their shapes.

    called: names of functions with their bound arguments, in order. executed, stood_in: names of helpers that ran, and of those
    that need a GPU.
    """

    def __init__(self, release: str) -> None:
        super().__init__(release)
        self.called: list[tuple[str, dict[str, Any]]] = []
        self.executed: set[str] = set()
        self.stood_in: set[str] = set()

    def call(self, entry: Entry, **arguments: Any) -> Any:
        reason = entry.lacking(self.release, arguments)
        if reason is not None:
            raise Mismatch(reason)
        function = self.function(entry)
        self.called.append((entry.name, bind(function, entry.path, self.release, arguments)))
        if entry in PURE:
            self.executed.add(entry.name)
            return function(**arguments)
        self.stood_in.add(entry.name)
        stand_in = STAND_INS.get(entry)
        return arguments.get("output") if stand_in is None else stand_in(arguments)


def bind(function: Any, path: str, release: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the real signature. Raises Mismatch.

    What goes into ``**kwargs`` of a function is looked up in its source, where each of them is taken by its name.
    """
    real = inspect.unwrap(function)
    signature = inspect.signature(real)
    try:
        given = dict(signature.bind(**arguments).arguments)
    except TypeError as error:
        raise Mismatch(f"{path} of FlashInfer {release}: {error}") from None
    rest: dict[str, Any] = next((given[name] for name, one in signature.parameters.items()
                                 if one.kind is one.VAR_KEYWORD and name in given), {})
    unread = [name for name in rest if f'"{name}"' not in inspect.getsource(real)]
    if unread:
        raise Mismatch(f"{path} of FlashInfer {release} reads no argument {', '.join(unread)}")
    return given


def _mxfp8(arguments: dict[str, Any]) -> Any:
    """e4m3 and e8m0 of 32 (OCP MX specification v1.0, section 6.3, with the scale rounded up), linear."""
    value = arguments["input"].float()
    blocks = value.unflatten(-1, (-1, 32))
    power = torch.ceil(torch.log2((blocks.abs().amax(-1) / 448).clamp_min(2.0**-127))).clamp(-127, 127)
    codes = (blocks / torch.exp2(power)[..., None]).flatten(-2).to(torch.float8_e4m3fn)
    return codes, (power + 127).to(torch.uint8).flatten()


def _quantised(arguments: dict[str, Any]) -> Any:
    """Zeros in the shapes of NVFP4: codes [M, K/2, E], scales in the MMA view."""
    experts, most, width = arguments["a"].shape
    codes = torch.zeros(experts, most, width // 4, dtype=torch.uint8).permute(1, 2, 0)
    tiles = (experts, -(-most // 128), -(-(width // 32) // 4), 32, 4, 4)
    return codes, torch.zeros(tiles, dtype=torch.uint8).view(torch.float8_e4m3fn).permute(3, 4, 1, 5, 2, 0)


def _answer(arguments: dict[str, Any]) -> Any:
    """What a function without ``output`` returns: zeros [T, H]."""
    given = arguments.get("output", arguments.get("moe_output"))
    if given is not None:
        return given
    x, narrow = arguments["hidden_states"], arguments["hidden_states"].dtype == torch.uint8
    return [torch.zeros(x.shape[0], x.shape[1] * (2 if narrow else 1), dtype=torch.bfloat16)]


#: Helpers that need no GPU.
PURE = (entries.INTERLEAVE, entries.MMA_VIEW, entries.W1_ROWS, entries.W2_ROWS, entries.BLOCK_LAYOUT)
STAND_INS: dict[Entry, Callable[[dict[str, Any]], Any]] = {
    entries.SWIZZLE: lambda arguments: SWIZZLED_128X4.place(
        arguments["unswizzled_sf"].view(-1, *arguments["unswizzled_sf"].shape[-2:])),
    entries.MXFP8_QUANTIZE: _mxfp8, entries.SILU_QUANTIZE: _quantised, entries.MASKED_GEMM: lambda arguments: None,
    entries.CUTE_DSL: _answer, entries.CUTE_DSL_NVFP4: _answer, **dict.fromkeys(entries.TRTLLM.values(), _answer)}
