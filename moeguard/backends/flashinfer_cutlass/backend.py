"""The backends ``flashinfer_cutlass`` and ``flashinfer_cutlass_unfused``: what they take, declare, run and tune."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from moeguard.backends.flashinfer_cutlass import tuning, witness
from moeguard.backends.flashinfer_cutlass.call import activation
from moeguard.backends.flashinfer_cutlass.layouts import FOUR_BIT, Prepared, foreign, prepare, probes
from moeguard.backends.flashinfer_cutlass.library import BUILT, built_recipes, installed_release, load, refusal
from moeguard.backends.flashinfer_cutlass.tactics import DEFAULT, Configuration, Counts, Tactic, configuration, expected, singles
from moeguard.backends.protocol import Availability, Backend, Refused, Support, Traits
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.layouts.contract import Probe
from moeguard.tensors.operand import Batch, Weights

#: Elements that H and the I of a rank must be multiples of, per recipe (the binding's alignment checks).
ALIGNMENT = {"bf16": 8, "fp16": 8, "fp8_per_tensor": 16, "fp8_block": 128, "mxfp4_bf16": 128, "mxfp4_fp8": 128,
             "int4_fp8": 128}


class FlashInferCutlass(Backend):
    """``flashinfer.fused_moe.cutlass_fused_moe`` on SM90 with ``use_fused_finalize``, as serving engines call it.

    The call is made as it comes: ids, layouts and token counts are not checked first.
    """

    name = "flashinfer_cutlass"
    fused: ClassVar[bool] = True

    def __init__(self) -> None:
        self._executed: Hashable | None = None

    def availability(self) -> Availability:
        reason = refusal()
        return Availability.yes() if reason is None else Availability.no(reason)

    def supports(self, case: Case) -> Support:
        unit, built, release = ALIGNMENT.get(case.recipe), built_recipes(), installed_release()
        if unit is None:
            return Support.no(f"no CUTLASS kernel on SM90 for recipe {case.recipe}")
        if built is not None and case.recipe not in built:
            return Support.no(f"the FlashInfer module was built without {case.recipe} ({BUILT})")
        if release is not None:
            if case.activation.kind == "geglu_tanh" and not release.geglu_tanh:
                return Support.no(f"FlashInfer {release.version} has no activation geglu_tanh")
            if case.recipe == "int4_fp8" and not release.int4_scales:
                return Support.no(f"FlashInfer {release.version} has no interleaving of int4 scales")
            if case.recipe == "mxfp4_fp8" and not release.humming:
                return Support.no(f"FlashInfer {release.version} has no kernel for MXFP4 weights with FP8 activations")
        if case.activation_format != "standard":
            return Support.no("the standard activation format only")
        for name, size in (("hidden_size", case.shape.hidden_size), ("intermediate_size", case.intermediate_local)):
            if size % unit:
                return Support.no(f"{name} {size} of a rank is not a multiple of {unit}")
        if case.weights.bias and case.parallel.tp_rank:
            return Support.no("biases are added on tensor-parallel rank 0 only")
        factor = not case.weights.bias and case.activation.kind != "swiglu_oai"
        if case.recipe == "fp8_per_tensor" and case.activation.gated and not factor:
            return Support.no("gate and up share one scale in the kernel; with biases or swiglu_oai that of up is no factor")
        return Support.yes()

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        """Engines rely on all of it.

        duplicate ids: NaN router logits of padded rows select one expert K times (vllm#39391). No tokens: an idle
        data-parallel rank (sglang#38773). Ids outside of the rank are skipped, by expert parallelism and for -1. Rows with
        gaps are not documented, and engines do not pass them. Engines capture the call in CUDA graphs (vllm, SGLang decode). The
        fused finalize adds with atomics.
        """
        finalize = _is_finalize(self._configurations(case, tactic))
        return Traits(deterministic=not finalize, graph_safe=True, invalid_ids="drop", noncontiguous="unsupported")

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        """GEMM1 writes its result in the output's dtype, but for the fused Ampere-style kernels; so does each expert of GEMM2.

        The finalize epilogue adds the weighted expert outputs in the output's dtype. e4m3 products of fp8_block pass through
        bf16 before they are quantised.
        """
        numerics = Numerics.of(case.recipe)
        narrow: Literal["bf16", "fp16"] = "fp16" if case.recipe == "fp16" else "bf16"
        first, second = self._configurations(case, tactic)
        direct = first is not None and first.ampere and (
            not case.activation.gated or _fused_gate(case))
        numerics = replace(numerics, projection="none" if direct else narrow, expert_output=narrow)
        if _is_finalize((first, second)):
            numerics = replace(numerics, combine="output")
        if case.recipe == "fp8_block":
            numerics = replace(numerics, intermediate="bf16+e4m3_1x128")
        if "fp8" in case.recipe:
            numerics = replace(numerics, accumulate="fp8_hopper")
        return numerics

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        return prepare(weights, case, load())

    def foreign_layouts(self, weights: Weights, case: Case) -> Mapping[str, Prepared]:
        """4-bit weights without interleaving: no tensor tells them apart, and nothing checks (flashinfer#3334)."""
        return foreign(weights, case, load())

    def layout_probes(self, case: Case) -> Mapping[str, Probe]:
        """How the library interleaves 4-bit weights and their scales for Hopper."""
        return probes(case, load())

    def tactics(self, prepared: Prepared, batch: Batch) -> tuple[Tactic, ...]:
        """Each tactic of one stage with the other at its default."""
        if prepared.case.recipe == "fp8_block":
            return ()  # one configuration is wired into the library, whatever is asked for
        offer, known = tuning.offer(load(), prepared, batch, fused=self.fused), self._counts(prepared.case.recipe)
        if known is not None and known != offer.counts:
            raise RuntimeError(f"the runner lists {offer.counts.gemm1} + {offer.counts.gemm2} tactics where the table of this "
                               f"adapter has {known.gemm1} + {known.gemm2}")
        return singles(list(offer.gemm1), list(offer.gemm2))

    def workspace_bytes(self, prepared: Prepared, batch: Batch) -> int:
        library = load()
        assert batch.topk_ids is not None
        tokens, top_k = batch.topk_ids.shape
        if not library.release.workspace or not tokens:
            return 0
        case = prepared.case
        return int(library.module.cutlass_fused_moe_workspace_size(
            tokens, case.shape.hidden_size, case.intermediate_local, case.shape.num_experts, top_k, x_dtype=prepared.x_dtype,
            weight_dtype=prepared.fc1.dtype, output_dtype=prepared.output_dtype,
            activation_type=activation(library, case),
            tp_size=case.parallel.tp_size, tp_rank=case.parallel.tp_rank, ep_size=case.parallel.ep_size,
            ep_rank=case.parallel.ep_rank, use_fused_finalize=self.fused, **prepared.flags))

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        if batch.topk_ids is None:
            raise Refused("the batched activation format is not supported")
        library, chosen = load(), _named(tactic)

        def call() -> None:
            tuning.call(library, prepared, batch, out, chosen, fused=self.fused, workspace=workspace)

        key = (batch.topk_ids.shape[0], chosen)
        if tactic is None or key in prepared.witnessed:
            call()
        else:
            names = witness.record(call)
            prepared.witnessed[key] = self._seen(prepared, chosen, names)
        self._executed = None if tactic is None else prepared.witnessed[key]

    def executed_tactic(self) -> Hashable | None:
        return self._executed

    def tune(self, prepared: Prepared, batch: Batch) -> Tactic | None:
        """FlashInfer's ``autotune`` for the bucket of this batch; None where there is nothing to choose, or for no tokens."""
        if prepared.case.recipe == "fp8_block" or batch.topk_ids is None or not batch.topk_ids.shape[0]:
            return None
        out = torch.empty(batch.x.data.shape, dtype=prepared.output_dtype, device=batch.topk_ids.device)
        choice = tuning.tune(load(), prepared, batch, out, fused=self.fused)
        return None if choice == DEFAULT else choice

    def tuning_caps(self, prepared: Prepared, batch: Batch, caps: Sequence[int]) -> list[int]:
        return tuning.caps(load(), caps)

    def _counts(self, recipe: str) -> Counts | None:
        """Tactics of the two stages by the table, which knows nothing of the 4-bit kernels before they were interleaved."""
        release = installed_release()
        early = release is not None and not release.interleaved and recipe in FOUR_BIT
        return None if early else expected(recipe, fused=self.fused)

    def _configurations(self, case: Case, tactic: Hashable | None) -> tuple[Configuration | None, Configuration | None]:
        """What runs in the two stages; None where ids select nothing or nothing is known of them."""
        chosen = _named(tactic)
        counts = self._counts(case.recipe)
        if counts is None:
            return None, None
        return configuration(counts, 1, chosen.gemm1), configuration(counts, 2, chosen.gemm2)

    def _seen(self, prepared: Prepared, chosen: Tactic, names: list[str]) -> Hashable | None:
        """``chosen`` when the kernels that ran are its own, what ran otherwise; None when the names do not tell."""
        ran = witness.gemms(names)
        wanted = self._configurations(prepared.case, chosen)
        if len(ran) != 2 or None in wanted:
            return None
        return chosen if tuple(ran) == wanted else " and ".join(map(str, ran))


class FlashInferCutlassUnfused(FlashInferCutlass):
    """The same with ``use_fused_finalize=False``, the library's deterministic setting."""

    name = "flashinfer_cutlass_unfused"
    fused = False

    def availability(self) -> Availability:
        found = super().availability()
        if found.available and not load().release.fused_finalize:
            return Availability.no(f"FlashInfer {load().release.version} has no use_fused_finalize")
        return found


def _named(tactic: Hashable | None) -> Tactic:
    """The pair behind a tactic or its ``str``. Raises ValueError for anything else."""
    if tactic is None:
        return DEFAULT
    if isinstance(tactic, Tactic):
        return tactic
    parts: Any = str(tactic).strip("()").split(",")
    if len(parts) != 2 or not all(part.strip().lstrip("-").isdigit() for part in parts):
        raise ValueError(f"tactic {tactic!r}; allowed: a pair of ids such as (3, -1)")
    return Tactic(int(parts[0]), int(parts[1]))


def _is_finalize(stages: tuple[Configuration | None, Configuration | None]) -> bool:
    return stages[1] is not None and stages[1].finalize


def _fused_gate(case: Case) -> bool:
    """Whether the Ampere-style kernels apply a gated activation to their float32 sums (``supportsFusedGatedActivation``)."""
    sizes = (case.shape.hidden_size, case.intermediate_local)
    return case.activation.kind in ("swiglu", "geglu") and not any(size % 64 for size in sizes)
