"""FlashInfer's own tuner: enumerate tactics, force one, let it tune, and read what it chose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from moeguard.backends.flashinfer_cutlass.call import activation, arguments
from moeguard.backends.flashinfer_cutlass.layouts import Prepared
from moeguard.backends.flashinfer_cutlass.library import Library
from moeguard.backends.flashinfer_cutlass.tactics import Counts, Tactic
from moeguard.tensors.operand import Batch

#: The tuner's names of the two stages.
OPS = {1: "trtllm::fused_moe::gemm1", 2: "trtllm::fused_moe::gemm2"}


@dataclass(frozen=True, slots=True)
class Offer:
    """Tactic ids that the runner declares valid for each stage, and how many it has in all."""

    gemm1: tuple[int, ...]
    gemm2: tuple[int, ...]
    counts: Counts


def runner(library: Library, prepared: Prepared, top_k: int, *, fused: bool) -> Any:
    """The library's ``MoERunner`` for a call with these arguments."""
    case, flags = prepared.case, prepared.flags
    named: dict[str, Any] = {
        "x_dtype": prepared.x_dtype, "weight_dtype": prepared.fc1.dtype, "output_dtype": prepared.output_dtype, "top_k": top_k,
        "tp_size": case.parallel.tp_size, "tp_rank": case.parallel.tp_rank, "ep_size": case.parallel.ep_size,
        "ep_rank": case.parallel.ep_rank, "cluster_size": 1, "cluster_rank": 0, "enable_alltoall": False,
        "use_deepseek_fp8_block_scale": flags.get("use_deepseek_fp8_block_scale", False),
        "use_w4_group_scaling": flags.get("use_w4_group_scaling", False), "use_mxfp8_act_scaling": False,
        "min_latency_mode": False, "enable_pdl": True, "activation_type": activation(library, case),
        "use_packed_weights": flags.get("use_packed_weights", False)}
    if library.release.fused_finalize:
        named |= {"use_fused_finalize": fused, "use_wfp4afp8_humming": flags.get("use_wfp4afp8_humming", False)}
    return library.module.MoERunner(**named)


def offer(library: Library, prepared: Prepared, batch: Batch, *, fused: bool) -> Offer:
    """Every tactic that the tuner would try for this batch."""
    assert batch.topk_ids is not None
    one = runner(library, prepared, batch.topk_ids.shape[1], fused=fused)
    inputs = [batch.x.data, prepared.fc1, None, prepared.fc2, None]
    ids: dict[int, tuple[int, ...]] = {}
    for stage in OPS:
        one.gemm_idx_for_tuning = stage
        ids[stage] = tuple(int(tactic) for tactic in one.get_valid_tactics(inputs, None) if int(tactic) >= 0)
    built = one.fused_moe_runner
    return Offer(ids[1], ids[2], Counts(int(built.get_gemm1_tactic_count()), int(built.get_gemm2_tactic_count())))


@contextlib.contextmanager
def chosen(library: Library, tactic: Tactic | None, log: dict[str, Any]) -> Iterator[None]:
    """Within, the tuner answers with ``tactic`` (None: as it pleases), and ``log`` gets its answers by operation."""
    before = library.tuner.choose_one
    wanted = {} if tactic is None else {OPS[1]: tactic.gemm1, OPS[2]: tactic.gemm2}

    def choose_one(self: Any, custom_op: str, runners: Any, *args: Any, **named: Any) -> Any:
        answer = (runners[0], wanted[custom_op]) if custom_op in wanted else before(self, custom_op, runners, *args, **named)
        log[custom_op] = answer[1]
        return answer

    library.tuner.choose_one = choose_one
    try:
        yield
    finally:
        library.tuner.choose_one = before


def call(library: Library, prepared: Prepared, batch: Batch, out: Tensor, tactic: Tactic, *, fused: bool,
         workspace: Tensor | None = None) -> None:
    """The call with this tactic and no other, by ``profile_ids`` where the release has them."""
    named = arguments(library, prepared, batch, out, fused=fused, workspace=workspace)
    if library.release.profile_ids:
        library.core.cutlass_fused_moe(**named, profile_ids=list(tactic))
        return
    with chosen(library, tactic, {}):
        library.core.cutlass_fused_moe(**named)


def bucket(library: Library, tokens: int, cap: int) -> int:
    """The tuning bucket that serves ``tokens`` under ``cap``, by the library's own mapper."""
    from flashinfer.fused_moe import utils

    if library.release.rounds_up:
        return int(utils.make_hybrid_bucket_mapper(cap)(tokens))
    return min(int(utils.last_positive_power_of_2(tokens)), cap)


def tune(library: Library, prepared: Prepared, batch: Batch, out: Tensor, *, fused: bool, cap: int) -> dict[int, Any]:
    """Let the library tune the bucket of this batch and run once; its choice by stage (-1 or None: the default)."""
    assert batch.topk_ids is not None
    tokens = batch.topk_ids.shape[0]
    named = arguments(library, prepared, batch, out, fused=fused, cap=cap)
    options = {}
    if library.release.tuning_buckets:
        options = {"tuning_buckets": (bucket(library, tokens, cap),), "round_up": True}
    log: dict[str, Any] = {}
    with library.autotune(True, **options), chosen(library, None, log):
        library.core.cutlass_fused_moe(**named)
    return {stage: log.get(op) for stage, op in OPS.items()}
