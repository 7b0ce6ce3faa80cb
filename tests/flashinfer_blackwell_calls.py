"""Questions to the adapters for Blackwell that run beside a real FlashInfer in a child process, without a GPU."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from moeguard.autotune import fake_runner
from moeguard.autotune.runner_class import unbuilt_runner_class
from moeguard.backends.flashinfer_blackwell import entries, library, tuner
from moeguard.backends.flashinfer_blackwell.backend import Blackwell
from moeguard.backends.flashinfer_blackwell.cutedsl import FlashInferCuteDSL
from moeguard.backends.flashinfer_blackwell.cutedsl_batched import FlashInferCuteDSLBatched
from moeguard.backends.flashinfer_blackwell.trtllm import FlashInferTRTLLM, FlashInferTRTLLMLogits
from moeguard.backends.protocol import VacuousTuning
from moeguard.backends.wheel_contract import standins
from moeguard.backends.wheel_contract.examine import examine
from moeguard.backends.wheel_contract.recorder import STAND_INS, Recorder
from moeguard.core.case import Case
from moeguard.quant.blocks import fake_quantize
from moeguard.quant.packed import decode_packed, encode_e2m1, pack
from moeguard.tensors.problem import Problem, build_problem
from moeguard.tensors.weights import WeightBank

SHAPE = {"num_tokens": 7, "hidden_size": 256, "intermediate_size": 384, "num_experts": 8, "top_k": 3}
SHARD = {"ep_size": 2, "ep_rank": 1}


def asked(recipes: list[str]) -> dict[str, Any]:
    """What ``moeguard doctor`` asks of a release, for some recipes."""
    return examine(recipes)


def _run(kind: type[Blackwell], recipe: str, **fields: Any) -> tuple[Case, Problem, dict[str, Any], Recorder]:
    """The bound arguments of the adapter's last call for a shard of experts."""
    standins.install()
    from importlib.metadata import version

    recorder = Recorder(version("flashinfer-python"))
    case = Case.model_validate({"shape": SHAPE, "recipe": recipe, "parallel": SHARD, **fields})
    problem = build_problem(case, WeightBank())
    adapter = kind(recorder)
    out = torch.zeros(*problem.batch.x.shape[:-1], SHAPE["hidden_size"], dtype=torch.bfloat16)
    adapter.launch(recorder, adapter.prepare(problem.weights, case), problem.batch, out)
    return case, problem, recorder.called[-1][1], recorder


def _expected(problem: Problem) -> Tensor:
    """The answer in float32, without a rounding of the intermediate."""
    weights, batch, case = problem.weights, problem.batch, problem.case
    assert batch.topk_ids is not None and batch.topk_weights is not None
    x, result = batch.x.dequantize(), torch.zeros(batch.topk_ids.shape[0], case.shape.hidden_size)
    gate, up = weights.gate.dequantize(), None if weights.up is None else weights.up.dequantize()
    down = weights.down.dequantize()
    for expert in range(case.experts_local):
        share = (batch.topk_weights * (batch.topk_ids == case.first_expert + expert)).sum(1, keepdim=True)
        inner = x @ gate[expert].T
        inner = functional.relu(inner) ** 2 if up is None else functional.silu(inner) * (x @ up[expert].T)
        result += share * (inner @ down[expert].T)
    return result


def cutedsl_answer(recipe: str, activation: str) -> float:
    """Largest error of FlashInfer's own reference on what the adapter passes, relative to the largest value expected.

    The reference does not quantise the intermediate, so that its static scale is taken out of the second alpha.
    """
    _, problem, named, _ = _run(FlashInferCuteDSL, recipe, activation={"kind": activation})
    from flashinfer.trace.templates.moe import _cute_dsl_fused_moe_reference

    if named["fc2_input_scale"] is not None:
        named["w2_alpha"] = named["w2_alpha"] * named["fc2_input_scale"]
    if named["x_sf"] is not None and recipe.startswith("mx"):
        named["x_sf"] = named["x_sf"].view(torch.uint8)
    got = _cute_dsl_fused_moe_reference(**{name: value for name, value in named.items() if name != "moe_output"}).float()
    wanted = _expected(problem)
    return float((got - wanted).abs().max() / wanted.abs().max())


def cutedsl_second_factor() -> float:
    """Relative error of ``w2_alpha`` against the factors of down and of the intermediate alone, though gate and up differ."""
    _, problem, named, _ = _run(FlashInferCuteDSL, "nvfp4")
    gate, up, down = (one.global_scale for one in (problem.weights.gate, problem.weights.up, problem.weights.down) if one)
    assert not torch.equal(gate, up)
    return float((named["w2_alpha"] / (down * problem.weights.intermediate_scale) - 1).abs().max())


def trtllm_weights(recipe: str, activation: str) -> list[bool]:
    """Whether FlashInfer's own functions restore [up; gate] and down, codes and scales, from what the adapter passes."""
    _, problem, named, _ = _run(FlashInferTRTLLM, recipe, activation={"kind": activation})
    from flashinfer.trace.templates.gemm import _unswizzle_batched_sf_128x4
    from flashinfer.trace.templates.moe import _trtllm_unshuffle_weight

    weights, gated = problem.weights, problem.weights.up is not None

    def joined(part: str) -> Tensor:
        halves = [getattr(one, part) for one in (weights.up, weights.gate) if one is not None]
        return torch.cat([half.contiguous().view(torch.uint8) for half in halves], 1)

    said = []
    for name, wanted, alternating in (("gemm1_weights", joined("data"), gated),
                                      ("gemm2_weights", weights.down.data.contiguous().view(torch.uint8), False)):
        stored = named[name].contiguous().view(torch.uint8)
        if recipe == "bf16":  # [E, blocks, rows, 128 bytes]
            stored = stored.permute(0, 2, 1, 3).reshape(wanted.shape)
        said.append(torch.equal(_trtllm_unshuffle_weight(stored, alternating).to(torch.uint8), wanted))
    if weights.down.scale is None or weights.down.scale.dim() < 3:
        return said
    for name, wanted, alternating in (("gemm1_weights_scale", joined("scale"), gated),
                                      ("gemm2_weights_scale", weights.down.scale.view(torch.uint8), False)):
        linear = _unswizzle_batched_sf_128x4(named[name].view(torch.uint8), *wanted.shape)
        said.append(torch.equal(_trtllm_unshuffle_weight(linear, alternating).to(torch.uint8), wanted))
    return said


def trtllm_factors(recipe: str) -> list[float]:
    """Relative errors of the scale arguments against products of the operands' own scales: gate, up, down."""
    case, problem, named, _ = _run(FlashInferTRTLLM, recipe)
    weights, x = problem.weights, problem.batch.x

    def factor(operand: Any) -> Tensor:
        return operand.global_scale if operand.global_scale is not None else operand.scale

    assert weights.up is not None and weights.intermediate_scale is not None
    plural = "scales" if recipe == "fp8_per_tensor" else "scale"
    wanted = {f"output1_{plural}_gate_scalar": factor(weights.gate) * factor(x),
              f"output1_{plural}_scalar": factor(weights.up) * factor(x) / weights.intermediate_scale,
              f"output2_{plural}_scalar": factor(weights.down) * weights.intermediate_scale}
    assert all(named[name].shape == (case.experts_local,) for name in wanted)
    return [float((named[name] / value - 1).abs().max()) for name, value in wanted.items()]


def batched_calls() -> list[Any]:
    """Shapes and types of the three calls of the batched adapter, in order."""
    _, problem, _, recorder = _run(FlashInferCuteDSLBatched, "nvfp4", activation_format="batched")
    calls = [named for name, named in recorder.called if name in (
        "grouped_gemm_nt_masked", "silu_and_mul_scaled_nvfp4_experts_quantize")]
    first, between, second = calls
    counts = problem.batch.expert_num_tokens
    assert counts is not None
    return [
        [list(first[side][0].shape) for side in ("lhs", "rhs")], [list(first[side][1].shape) for side in ("lhs", "rhs")],
        list(first["out"].shape), list(between["a"].shape), list(second["out"].shape),
        bool(first["out"].data_ptr() == between["a"].data_ptr()), bool((between["mask"] == counts).all()),
        [list(second["kwargs"]["alpha"].shape), list(between["a_global_sf"].shape)], int(counts.max())]


def batched_answer() -> float:
    """Root mean square error of the three calls, computed on the CPU from what they are given, relative to that of the answer.

    The answer has its intermediate quantised to NVFP4 by moeguard's own codec. Rows beyond the counts must be as they were.
    """
    names = {entries.MASKED_GEMM: _masked_gemm, entries.SILU_QUANTIZE: _silu_quantize}
    with patch.dict(STAND_INS, names):
        standins.install()
        from importlib.metadata import version

        recorder = Recorder(version("flashinfer-python"))
        case = Case.model_validate({"shape": SHAPE, "recipe": "nvfp4", "parallel": SHARD, "activation_format": "batched"})
        problem, adapter = build_problem(case, WeightBank()), FlashInferCuteDSLBatched(recorder)
        out = torch.full(problem.batch.x.shape, torch.nan, dtype=torch.bfloat16)
        adapter.run(adapter.prepare(problem.weights, case), problem.batch, out)
    weights, counts = problem.weights, problem.batch.expert_num_tokens
    assert weights.up is not None and counts is not None
    x, gate, up, down = (one.dequantize() for one in (problem.batch.x, weights.gate, weights.up, weights.down))
    wanted = fake_quantize(functional.silu(x @ gate.mT) * (x @ up.mT), "nvfp4", weights.intermediate_scale)[0] @ down.mT
    held = torch.arange(out.shape[1]) < counts[:, None]
    assert bool(out[~held].isnan().all())
    return float((out.float() - wanted)[held].square().mean().sqrt() / wanted[held].square().mean().sqrt())


def _dequantized(pair: tuple[Tensor, Tensor]) -> Tensor:
    """Codes [M, K/2, E] and scales [32, 4, m, 4, k, E] as values [E, M, K], read as FlashInfer's reference for CuteDSL does."""
    codes, scale = pair
    values = decode_packed(codes.permute(2, 0, 1).contiguous(), "e2m1")
    linear = scale.view(torch.uint8).permute(5, 2, 1, 0, 4, 3).contiguous().reshape(values.shape[0], -1, scale.shape[4] * 4)
    used = linear[:, : values.shape[1], : values.shape[2] // 16].contiguous().view(torch.float8_e4m3fn).float()
    return values * used.repeat_interleave(16, 2)


def _masked_gemm(arguments: dict[str, Any]) -> None:
    """out[:m] = alpha * A @ B^T of each expert, m its count."""
    left, right, out = _dequantized(arguments["lhs"]), _dequantized(arguments["rhs"]), arguments["out"].permute(2, 0, 1)
    for expert, count in enumerate(arguments["masked_m"].tolist()):
        product = arguments["alpha"][expert] * left[expert, :count] @ right[expert].T
        out[expert, :count] = product.to(out.dtype)


def _silu_quantize(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """silu(first half) * second half, multiplied with the factor of its expert, in e2m1 with e4m3 scales of 16."""
    gate, up = arguments["a"].float().chunk(2, 2)
    value = functional.silu(gate) * up * arguments["a_global_sf"][:, None, None]
    blocks = value.nan_to_num().unflatten(2, (-1, 16))
    scale = (blocks.abs().amax(3) / 6).clamp(2.0**-9, 448).to(torch.float8_e4m3fn)
    codes = pack(encode_e2m1((blocks / scale.float()[..., None]).flatten(2)))
    rows, groups = -(-scale.shape[1] // 128) * 128, -(-scale.shape[2] // 4) * 4
    padded = functional.pad(scale.view(torch.uint8), (0, groups - scale.shape[2], 0, rows - scale.shape[1]))
    view = padded.view(len(padded), rows // 128, 4, 32, groups // 4, 4).permute(3, 2, 1, 5, 4, 0)
    return codes.permute(1, 2, 0), view.view(torch.float8_e4m3fn)


def tuned() -> dict[str, Any]:
    """The real ``AutoTuner`` around a call whose runner has three tactics, of which 5 is the fastest, or all fail."""
    from flashinfer.autotuner import AutoTuner, autotune

    release, config = library.installed() or "", unbuilt_runner_class("90").tuning_config  # type: ignore[attr-defined]
    said: dict[str, Any] = {}
    for name, failing in (("works", lambda tokens, tactic: None), ("fails", lambda tokens, tactic: RuntimeError("no kernel"))):
        with fake_runner.tuner() as live:
            times = {3: 9.0, 5: 2.0, 7: 4.0}
            one = fake_runner.runner([*times], lambda tokens, tactic, times=times: times.get(tactic, 50.0), failing=failing)
            linked = fake_runner.tuning_config(config)
            asked: list[Any] = []

            def call(one: Any = one, linked: Any = linked, live: Any = live, asked: list[Any] = asked) -> None:
                asked.append(live.choose_one("op", [one], linked, fake_runner.inputs(7))[1])

            offered = list(tuner.offer(AutoTuner, call))
            tuner.forced(AutoTuner, 7, call)
            try:
                chosen: Any = tuner.tune(AutoTuner, autotune, release, 7, call)
            except VacuousTuning as error:
                chosen = str(error)
            said[name] = [offered, asked[0], chosen]
    return said


def logits() -> dict[str, Any]:
    """What the function with its own router is told of routing."""
    _, problem, named, _ = _run(FlashInferTRTLLMLogits, "bf16")
    assert problem.batch.router_logits is not None
    return {"logits": torch.equal(named["routing_logits"], problem.batch.router_logits), "method": named["routing_method_type"],
            "offset": named["local_expert_offset"], "local": named["local_num_experts"], "experts": named["num_experts"],
            "top_k": named["top_k"]}


def run(wanted: dict[str, list[Any]]) -> dict[str, Any]:
    """Several answers from one process. wanted: by name of an answer, the function's name and its arguments."""
    torch.set_num_threads(1)
    return {name: globals()[function](*arguments) for name, (function, *arguments) in wanted.items()}
