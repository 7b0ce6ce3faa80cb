"""Weights with scales of groups: layout, shards, ranges of the scales, static and global scales, exact mode."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.memory.digest import digest
from moeguard.quant.blocks import power_of_two, row_scales
from moeguard.quant.formats import round_to
from moeguard.tensors.inputs import decided
from moeguard.tensors.operand import Operand, Weights
from moeguard.tensors.problem import Problem, build_problem
from moeguard.tensors.weights import WeightBank

SHAPE = {"num_tokens": 40, "hidden_size": 256, "intermediate_size": 256, "num_experts": 4, "top_k": 2}
GROUPED = [name for name, recipe in RECIPES.items() if recipe.group > 1]
NVFP4 = [name for name in GROUPED if name.startswith("nvfp4")]
NUMPY = {"e2m1": ml_dtypes.float4_e2m1fn, "int4": ml_dtypes.int4, "e4m3": ml_dtypes.float8_e4m3fn}
SCALES = {torch.uint8: ml_dtypes.float8_e8m0fnu, torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn}
#: Digests of gate's and down's data and scales, and of gate's global scale, written down: were they to change, stored case files
#: would mean other tensors.
PINNED = {
    "mxfp4_bf16": [-7239110958083200563, -3814783459799002130, 3262991354229956513, 6620063881504010634],
    "mxfp4_fp8": [-8593512343971878513, -984207861391205722, -629372503517144405, -2320855722818108605],
    "int4_fp8": [-8665689629534974200, 4450809357955860171, -1324762343449310961, -767822992945658785],
    "mxfp8": [2982378793519621656, 7162451477718651770, 6760128271175274749, -1607101520990237249],
    "nvfp4": [6519984599957807041, -4737118323014780247, 4381754678802668356, -5301259612551928476, 187063690453766811],
    "nvfp4_bf16": [-976148867043864138, -8484218332403863954, -8438636260559689061, -5187338185212267786, 5445065436510672605]}


def build(recipe: str, **fields: Any) -> Problem:
    return build_problem(Case.model_validate({"shape": SHAPE, "recipe": recipe} | fields), WeightBank())


def operands(weights: Weights) -> list[Operand]:
    return [weights.gate, weights.down] if weights.up is None else [weights.gate, weights.up, weights.down]


@pytest.mark.parametrize("recipe", GROUPED)
def test_bits_are_pinned(recipe: str) -> None:
    gate, down = build(recipe).weights.gate, build(recipe).weights.down
    assert gate.scale is not None and down.scale is not None
    whole = [] if gate.global_scale is None else [gate.global_scale]
    assert [digest(tensor) for tensor in (gate.data, down.data, gate.scale, down.scale, *whole)] == PINNED[recipe]


@pytest.mark.parametrize("recipe", GROUPED)
def test_dequantised_values_are_codes_times_scales(recipe: str) -> None:
    problem = build(recipe)
    for operand in [*operands(problem.weights), *([problem.batch.x] if recipe == "nvfp4" else [])]:
        assert operand.scale is not None
        byte = operand.data.view(torch.uint8).numpy()
        codes = np.stack([byte & 15, byte >> 4], -1).reshape(operand.shape).astype(np.int8) if operand.packed else byte
        value = codes.view(NUMPY[operand.format]).astype(np.float64)
        stored = SCALES.get(operand.scale.dtype)
        scale = (operand.scale.double().numpy() if stored is None
                 else operand.scale.view(torch.uint8).numpy().view(stored).astype(np.float64))
        wanted = torch.from_numpy(value * np.repeat(scale, RECIPES[recipe].group, -1))
        if operand.global_scale is not None:
            wanted *= operand.global_scale.double().view(-1, *[1] * (wanted.dim() - 1))
        assert torch.equal(operand.dequantize(torch.float64), wanted)
        exact = operand.global_scale is None
        torch.testing.assert_close(operand.dequantize().double(), wanted, rtol=0 if exact else 2**-24, atol=0)
        assert len(np.unique(codes)) >= 15


@pytest.mark.parametrize("recipe", GROUPED)
def test_columns_and_experts_are_parts_of_the_whole(recipe: str) -> None:
    operand = build(recipe).weights.down
    whole = operand.dequantize(torch.float64)
    expert, column = torch.tensor([0, 3, 1, 1]), torch.tensor([0, 255, 128, 7])
    assert torch.equal(operand.columns(expert, column), whole[expert, :, column])
    assert torch.equal(operand.experts(slice(2, 4)).dequantize(torch.float64), whole[2:4])


@pytest.mark.parametrize("exact", ["normal", "exact"])
@pytest.mark.parametrize("recipe", GROUPED)
def test_tp_and_ep_shards_are_parts_of_the_whole(recipe: str, exact: str) -> None:
    whole = [operand.dequantize() for operand in operands(build(recipe, inputs={"kind": exact}).weights)]
    for rank in range(2):
        part = operands(build(recipe, inputs={"kind": exact}, parallel={"tp_size": 2, "tp_rank": rank}).weights)
        rows = slice(rank * 128, rank * 128 + 128)
        assert torch.equal(part[0].dequantize(), whole[0][:, rows]) and torch.equal(part[1].dequantize(), whole[1][:, rows])
        assert torch.equal(part[2].dequantize(), whole[2][:, :, rows])
        part = operands(build(recipe, inputs={"kind": exact}, parallel={"ep_size": 2, "ep_rank": rank}).weights)
        assert all(torch.equal(own.dequantize(), full[rank * 2:rank * 2 + 2]) for own, full in zip(part, whole, strict=True))


@pytest.mark.parametrize("exponent", [-149, -40, 40, 127])
@pytest.mark.parametrize("kind", ["normal", "tiny", "zero", "bimodal", "heterogeneous", "saturating"])
def test_scales_of_an_expert_fit_into_e4m3_weights(kind: str, exponent: int) -> None:
    """mxfp4_fp8: at most 11 binades over gate and up of one expert, so that a kernel may fold them."""
    weights = build("mxfp4_fp8", scales={"kind": kind, "exponent": exponent}).weights
    assert weights.up is not None and weights.gate.scale is not None and weights.up.scale is not None
    first = torch.cat([weights.gate.scale.flatten(1), weights.up.scale.flatten(1)], 1).int()
    assert int((first.amax(1) - first.amin(1)).max()) <= 11 and int(first.max()) < 254


@pytest.mark.parametrize("exponent", [-149, -40, 40, 127])
@pytest.mark.parametrize("kind", ["normal", "tiny", "zero", "bimodal", "heterogeneous", "saturating"])
@pytest.mark.parametrize("recipe", NVFP4)
def test_one_global_scale_can_hold_gate_and_up(recipe: str, kind: str, exponent: int) -> None:
    """Kernels with one for both shift the e4m3 scales of the smaller one, without loss."""
    weights = build(recipe, scales={"kind": kind, "exponent": exponent}).weights
    assert weights.up is not None and weights.gate.global_scale is not None and weights.up.global_scale is not None
    shared = torch.maximum(weights.gate.global_scale, weights.up.global_scale)
    for operand in (weights.gate, weights.up):
        shift = (operand.global_scale / shared)[:, None, None]
        scale = operand.scales() * shift
        assert power_of_two(shift) and torch.equal(scale.to(torch.float8_e4m3fn).float(), scale)
    assert bool((shared >= 2.0**-126).all())


@pytest.mark.parametrize("recipe", NVFP4)
def test_global_scales_of_gate_and_up_are_apart(recipe: str) -> None:
    weights = build(recipe, shape={**SHAPE, "hidden_size": 32, "intermediate_size": 32, "num_experts": 64}).weights
    assert weights.up is not None and weights.gate.global_scale is not None and weights.up.global_scale is not None
    ratio = weights.up.global_scale / weights.gate.global_scale
    assert set(ratio.tolist()) == {0.5, 1.0, 2.0} and len(weights.gate.global_scale.unique()) > 60


@pytest.mark.parametrize("recipe", NVFP4)
def test_subnormal_and_zero_scales_and_the_largest_one(recipe: str) -> None:
    def scales(kind: str) -> list[float]:
        down = build(recipe, scales={"kind": kind, "exponent": -5}).weights.down.scales()
        assert down is not None
        return [float(down.min()), float(down[down > 0].min()), float(down.max())]

    assert scales("tiny")[:2] == [0.0, 2.0**-9]
    assert scales("normal") == [16.0, 16.0, 240.0]
    assert scales("saturating")[2] == 448.0


@pytest.mark.parametrize("kind", ["normal", "heavy_tail", "sparse", "spread", "outlier"])
def test_nvfp4_inputs_are_quantised_below_one_global_scale(kind: str) -> None:
    x = build("nvfp4", inputs={"kind": kind}).batch.x
    assert x.scale is not None and x.global_scale is not None and x.global_scale.shape == (1,)
    assert (x.data.dtype, x.scale.dtype, x.scale.shape) == (torch.uint8, torch.float8_e4m3fn, (40, 16))
    groups = x.codes().unflatten(1, (16, 16)).abs().amax(2)
    assert bool(((groups >= 3) | (x.scale.float() < 2.0**-6)).all())  # the largest of a group is at 6, but for rounded scales


def test_mxfp8_inputs_are_decided() -> None:
    x = torch.zeros(1, 64, dtype=torch.bfloat16)
    x[0, :3] = torch.tensor([448.0, -448.0, 3.5])
    x[0, 32:34] = torch.tensor([7.0, 1.0])
    moved = decided(x, "mxfp8").double()
    assert moved[0, :3].tolist() == [450.0, -450.0, 3.5] and moved[0, 32].item() > 7.0 and moved[0, 33].item() == 1.0
    assert torch.equal(decided(moved.bfloat16(), "mxfp8").double(), moved)


def test_a_zero_scale_is_zero_codes_in_e8m0() -> None:
    weights = build("mxfp4_bf16", scales={"kind": "zero"}, seed=1).weights
    assert weights.gate.scale is not None
    assert not weights.gate.data[1].any() and not weights.gate.scale[1].any() and weights.gate.data[0].any()
    for recipe in ("int4_fp8", "nvfp4"):
        assert not build(recipe, scales={"kind": "zero"}, seed=1).weights.gate.dequantize()[1].any()


@pytest.mark.parametrize("kind", ["normal", "heavy_tail", "sparse", "spread", "outlier"])
def test_static_input_scale_saturates_in_its_own_kind_alone(kind: str) -> None:
    for scales, wanted in (("normal", False), ("bimodal", False), ("saturating", True)):
        problem = build("int4_fp8", inputs={"kind": kind}, scales={"kind": scales, "exponent": 20})
        scale = problem.weights.input_scale
        assert scale is not None and power_of_two(scale)
        assert bool((problem.batch.x.dequantize().abs() > 448 * scale).any()) == wanted


def test_inputs_are_decided_for_a_scale_per_token() -> None:
    x = build("mxfp4_fp8", inputs={"kind": "outlier"}).batch.x.data
    assert torch.equal(decided(x, "e4m3_per_token"), x)
    code = x.double() / row_scales(x.double(), 256)
    assert torch.equal(round_to(code * (1 - 2.0**-20), "e4m3"), round_to(code * (1 + 2.0**-20), "e4m3"))


@pytest.mark.parametrize("recipe", GROUPED)
def test_exact_operands_are_small_integers_in_varied_codes(recipe: str) -> None:
    problem = build(recipe, inputs={"kind": "exact"})
    for operand in operands(problem.weights):
        value, scale = operand.dequantize(), operand.scales()
        assert torch.equal(value, value.round()) and scale is not None and len(scale.unique()) >= 3 and power_of_two(scale)
        assert set(operand.codes().abs().unique().tolist()) == {0.0, 1.0, 2.0, 4.0}
        assert operand.global_scale is None or power_of_two(operand.global_scale)
    x = problem.batch.x.dequantize(torch.float64)
    if recipe == "mxfp4_fp8":
        assert power_of_two(row_scales(x, 256))
    for scale in (problem.weights.input_scale, problem.weights.intermediate_scale):
        assert scale is None or power_of_two(scale)


@pytest.mark.parametrize(("recipe", "shape", "parallel", "message"), [
    ("mxfp4_bf16", {"hidden_size": 136}, {}, "shape.hidden_size: 136; recipe mxfp4_bf16 needs a multiple of 32"),
    ("int4_fp8", {"hidden_size": 192}, {}, "shape.hidden_size: 192; recipe int4_fp8 needs a multiple of 128"),
    ("int4_fp8", {}, {"tp_size": 4}, "shape.intermediate_size: 256 over tp_size 4; recipe int4_fp8 needs a multiple of 128"),
    ("mxfp4_fp8", {"intermediate_size": 48}, {}, "shape.intermediate_size: 48 over tp_size 1; recipe mxfp4_fp8 needs")])
def test_shapes_that_cut_a_group_are_refused(recipe: str, shape: dict[str, int], parallel: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.model_validate({"shape": SHAPE | shape, "recipe": recipe, "parallel": parallel})
