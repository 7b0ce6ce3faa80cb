"""The backend ``triton``: which cases it takes, what it declares, and its own tuning."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from moeguard.backends.protocol import Availability, Backend, Refused, Support, Traits
from moeguard.backends.triton_moe import device, interpreter
from moeguard.backends.triton_moe.layout import Prepared, prepare
from moeguard.backends.triton_moe.tactics import SCHEMES, Tactic, default, offered, shared_bytes
from moeguard.backends.triton_moe.workspace import Sizes
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES
from moeguard.tensors.operand import Batch, Weights

#: Seconds after which tune() starts no further tactic; compiling one takes a few.
TUNE_SECONDS = 5.0
#: Timed calls of one tactic.
REPEATS = 5


class Triton(Backend):
    """Rounds where the recipe says so and nowhere else; drops ids that this rank does not hold.

    Sums are float32 (Hopper's e4m3 products: 14 bits, promoted to float32 once a tile), expert outputs stay float32, and
    the K weighted outputs of a token are added in order, so equal inputs give equal bits.
    """

    name = "triton"

    def __init__(self) -> None:
        self._executed: Tactic | None = None

    def availability(self) -> Availability:
        return device.availability()

    def supports(self, case: Case) -> Support:
        if case.recipe not in SCHEMES:
            return Support.no(f"no kernel for recipe {case.recipe}")
        if case.activation_format != "standard":
            return Support.no("no kernel for the batched activation format")
        if device.interpreted():
            tokens, top_k = case.shape.num_tokens, case.shape.top_k
            cost = interpreter.milliseconds(case, tokens, top_k, interpreter.cheapest(case, tokens, top_k)[0])
            if cost > interpreter.LIMIT:
                return Support.no(f"about {cost:.0f} ms a call in the interpreter; allowed: {interpreter.LIMIT:.0f} ms")
            return Support.yes()
        found = device.capability()
        if case.recipe.startswith("fp8") and found is not None and found < device.ADA:
            return Support.no(f"e4m3 needs compute capability 8.9; this is {found[0]}.{found[1]}")
        return Support.yes()

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="drop", graph_safe=not device.interpreted())

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        """The recipe's, with Hopper's e4m3 accumulation where the device has it and the tactic uses it."""
        numerics, found = Numerics.of(case.recipe), device.capability()
        wide = isinstance(tactic, Tactic) and tactic.wide
        if not case.recipe.startswith("fp8") or wide or device.interpreted() or (found or device.HOPPER) >= device.BLACKWELL:
            return numerics
        return replace(numerics, accumulate="fp8_hopper")

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        return prepare(weights, case)

    def tactics(self, prepared: Prepared, batch: Batch) -> tuple[Tactic, ...]:
        assert batch.topk_ids is not None
        if device.interpreted():
            return tuple(interpreter.cheapest(prepared.case, *batch.topk_ids.shape))
        return self._allowed(prepared, batch)

    def workspace_bytes(self, prepared: Prepared, batch: Batch) -> int:
        """Enough for every tactic of the batch; 0 without tokens."""
        assert batch.topk_ids is not None
        tokens, top_k = batch.topk_ids.shape
        splits = max((tactic.splits for tactic in self._allowed(prepared, batch)), default=1)
        return _sizes(prepared, tokens, top_k, splits).bytes() if tokens else 0

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        if batch.topk_ids is None or batch.topk_weights is None:
            raise Refused("the batched activation format is not supported")
        tokens, top_k = batch.topk_ids.shape
        chosen = self._chosen(prepared, batch, tactic)
        if out.device.type != "cuda" and not device.interpreted():
            raise Refused(f"tensors on {out.device}; set {device.INTERPRET}=1 to run the kernels on a CPU")
        if out.shape[1] > 1 and out.stride(1) != 1:
            raise Refused("out: its last axis must have stride 1")
        if not tokens:
            self._executed = chosen
            return
        from moeguard.backends.triton_moe.launch import launch

        parts = _sizes(prepared, tokens, top_k, chosen.splits)
        self._executed = launch(prepared, batch, out, chosen, parts, workspace, interpreted=device.interpreted())

    def tune(self, prepared: Prepared, batch: Batch) -> Tactic | None:
        """The fastest offered tactic for this batch; None without tokens, and in the interpreter, where times say nothing.

        Each is called once to compile it and then timed; no further one is started after TUNE_SECONDS.
        """
        assert batch.topk_ids is not None
        if not batch.topk_ids.numel() or device.interpreted():
            return None
        out = torch.empty(batch.x.data.shape, dtype=_output_dtype(prepared.case), device=prepared.device)
        area = torch.empty(self.workspace_bytes(prepared, batch), dtype=torch.uint8, device=prepared.device)
        seconds: dict[Tactic, float] = {}
        start = time.perf_counter()
        for tactic in self.tactics(prepared, batch):
            if seconds and time.perf_counter() - start > TUNE_SECONDS:
                break
            seconds[tactic] = _measure(partial(self.run, prepared, batch, out, tactic=tactic, workspace=area))
        return min(seconds, key=lambda tactic: seconds[tactic])

    def executed_tactic(self) -> Tactic | None:
        return self._executed

    def _allowed(self, prepared: Prepared, batch: Batch) -> tuple[Tactic, ...]:
        assert batch.topk_ids is not None
        return tuple(tactic for tactic in offered(prepared.case.recipe, batch.topk_ids.numel(), prepared.hidden)
                     if _fits(prepared.case, tactic))

    def _chosen(self, prepared: Prepared, batch: Batch, tactic: Hashable | None) -> Tactic:
        assert batch.topk_ids is not None
        if tactic is None and device.interpreted():
            return interpreter.cheapest(prepared.case, *batch.topk_ids.shape)[0]
        if tactic is None:
            return default(prepared.case.recipe, batch.topk_ids.numel(), prepared.experts,
                           lambda candidate: _fits(prepared.case, candidate))
        for candidate in self._allowed(prepared, batch):
            if candidate == tactic or str(candidate) == tactic:
                return candidate
        raise ValueError(f"triton: tactic {tactic} is not offered for this batch")


def _fits(case: Case, tactic: Tactic) -> bool:
    return shared_bytes(tactic, case.recipe, case.activation.gated) <= device.shared_memory()


def _sizes(prepared: Prepared, tokens: int, top_k: int, splits: int) -> Sizes:
    return Sizes(tokens, tokens * top_k, prepared.hidden, prepared.inter, splits, prepared.gate.dtype, prepared.scheme == 2)


def _output_dtype(case: Case) -> torch.dtype:
    return torch.float16 if RECIPES[case.recipe].output == "fp16" else torch.bfloat16


def _measure(call: Callable[[], None]) -> float:
    """Seconds of one call on the GPU, after a first one that compiles it."""
    call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPEATS):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / REPEATS
