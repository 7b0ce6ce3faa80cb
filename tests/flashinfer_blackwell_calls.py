"""Questions to the adapters for Blackwell that run beside a real FlashInfer in a child process, without a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from moeguard.backends.flashinfer_blackwell.backend import Blackwell
from moeguard.backends.flashinfer_blackwell.cutedsl import FlashInferCuteDSL
from moeguard.backends.flashinfer_blackwell.cutedsl_batched import FlashInferCuteDSLBatched
from moeguard.backends.flashinfer_blackwell.trtllm import FlashInferTRTLLM, FlashInferTRTLLMLogits
from moeguard.backends.wheel_contract import standins
from moeguard.backends.wheel_contract.examine import examine
from moeguard.backends.wheel_contract.recorder import Recorder
from moeguard.core.case import Case
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
