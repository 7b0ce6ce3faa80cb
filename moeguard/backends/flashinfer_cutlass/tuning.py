"""FlashInfer's own tuner: enumerate tactics, force one, let it tune, and read what it chose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from moeguard.autotune.buckets import bucket_of
from moeguard.autotune.caps import effective_caps
from moeguard.autotune.runner_class import runner_class_of
from moeguard.autotune.statistics import Choice, Statistics, choices
from moeguard.autotune.vacuous import conclude
from moeguard.backends.flashinfer_cutlass.call import CAP, activation, arguments
from moeguard.backends.flashinfer_cutlass.layouts import Prepared
from moeguard.backends.flashinfer_cutlass.library import Library
from moeguard.backends.flashinfer_cutlass.tactics import Counts, Tactic
from moeguard.backends.protocol import VacuousTuning
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
    return runner_class_of(library.module)(**named)


def offer(library: Library, prepared: Prepared, batch: Batch, *, fused: bool) -> Offer:
    """Every tactic that the tuner would try for this batch; the library is asked once for these weights and top-k."""
    assert batch.topk_ids is not None
    top_k = batch.topk_ids.shape[1]
    if top_k not in prepared.offers:
        prepared.offers[top_k] = _ask(runner(library, prepared, top_k, fused=fused), prepared, batch)
    known: Offer = prepared.offers[top_k]
    return known


def _ask(one: Any, prepared: Prepared, batch: Batch) -> Offer:
    inputs = [batch.x.data, prepared.fc1, None, prepared.fc2, None]
    ids: dict[int, tuple[int, ...]] = {}
    for stage in OPS:
        one.gemm_idx_for_tuning = stage
        ids[stage] = tuple(int(tactic) for tactic in one.get_valid_tactics(inputs, None) if int(tactic) >= 0)
    built = one.fused_moe_runner
    return Offer(ids[1], ids[2], Counts(int(built.get_gemm1_tactic_count()), int(built.get_gemm2_tactic_count())))


@contextlib.contextmanager
def forced(library: Library, tactic: Tactic) -> Iterator[None]:
    """Within, the tuner answers with ``tactic``, whatever it knows."""
    before = library.tuner.choose_one
    wanted = {OPS[1]: tactic.gemm1, OPS[2]: tactic.gemm2}

    def choose_one(self: Any, custom_op: str, runners: Any, *args: Any, **named: Any) -> Any:
        return (runners[0], wanted[custom_op]) if custom_op in wanted else before(self, custom_op, runners, *args, **named)

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
    with forced(library, tactic):
        library.core.cutlass_fused_moe(**named)


def tune(library: Library, prepared: Prepared, batch: Batch, out: Tensor, *, fused: bool, cap: int = CAP) -> Tactic:
    """Let the library tune the bucket of this batch, and return what it would serve it with.

    Raises VacuousTuning when it measured nothing for a stage.
    """
    assert batch.topk_ids is not None
    tokens, top_k = batch.topk_ids.shape
    served = bucket_of(library.release.version, cap, tokens)
    if served is None:
        raise VacuousTuning(f"no bucket up to {cap} serves {tokens} tokens")
    options = {"tuning_buckets": (served,), "round_up": True} if library.release.tuning_buckets else {}
    tuner, one = library.tuner.get(), runner(library, prepared, top_k, fused=fused)
    inputs = [batch.x.data, prepared.fc1, prepared.biases and prepared.biases[0], prepared.fc2,
              prepared.biases and prepared.biases[1]]
    before = Statistics.of(tuner)
    read: list[Choice] = []
    with library.autotune(True, **options):
        library.core.cutlass_fused_moe(**arguments(library, prepared, batch, out, fused=fused, cap=cap))
        for one.gemm_idx_for_tuning, op in OPS.items():  # part of the tuner's key
            read += choices(tuner, op, [one], type(one).tuning_config, lambda _: inputs, (served,))
    offered = offer(library, prepared, batch, fused=fused)
    done = conclude(before, Statistics.of(tuner), read, {OPS[1]: map(str, offered.gemm1), OPS[2]: map(str, offered.gemm2)})
    if done.vacuous:
        raise VacuousTuning(done.sentence)
    return Tactic(*(int(choice.tactic) for choice in read))


def caps(library: Library, wanted: Sequence[int]) -> list[int]:
    """The largest bucket that the tuner is configured for after each of ``wanted`` was asked for in turn."""
    return effective_caps(runner_class_of(library.module), wanted)
