"""Four-bit weights of a case: layout, shards, ranges of the scales, static scales, exact mode."""

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
PACKED = [name for name, recipe in RECIPES.items() if recipe.packed]
NUMPY = {"e2m1": ml_dtypes.float4_e2m1fn, "int4": ml_dtypes.int4}
#: Digests of gate's and down's data and scales, written down: were they to change, stored case files would mean other tensors.
PINNED = {
    "mxfp4_bf16": [-7239110958083200563, -3814783459799002130, 3262991354229956513, 6620063881504010634],
    "mxfp4_fp8": [-8593512343971878513, -984207861391205722, -629372503517144405, -2320855722818108605],
    "int4_fp8": [-8665689629534974200, 4450809357955860171, -1324762343449310961, -767822992945658785]}


def build(recipe: str, **fields: Any) -> Problem:
    return build_problem(Case.model_validate({"shape": SHAPE, "recipe": recipe} | fields), WeightBank())


def operands(weights: Weights) -> list[Operand]:
    return [weights.gate, weights.down] if weights.up is None else [weights.gate, weights.up, weights.down]


@pytest.mark.parametrize("recipe", PACKED)
def test_bits_are_pinned(recipe: str) -> None:
    gate, down = build(recipe).weights.gate, build(recipe).weights.down
    assert gate.scale is not None and down.scale is not None
    assert [digest(tensor) for tensor in (gate.data, down.data, gate.scale, down.scale)] == PINNED[recipe]


@pytest.mark.parametrize("recipe", PACKED)
def test_dequantised_values_are_codes_times_scales(recipe: str) -> None:
    for operand in operands(build(recipe).weights):
        assert operand.scale is not None and operand.data.dtype == torch.uint8
        byte = operand.data.numpy()
        codes = np.stack([byte & 15, byte >> 4], -1).reshape(operand.shape).astype(np.int8)
        value = codes.view(NUMPY[operand.format]).astype(np.float64)
        stored = operand.scale
        scale = (stored.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float64) if operand.format == "e2m1"
                 else stored.double().numpy())
        wanted = torch.from_numpy(value * np.repeat(scale, RECIPES[recipe].group, -1))
        assert torch.equal(operand.dequantize(torch.float64), wanted)
        assert torch.equal(operand.dequantize().double(), wanted)
        assert len(np.unique(codes)) >= 15


@pytest.mark.parametrize("recipe", PACKED)
def test_columns_and_experts_are_parts_of_the_whole(recipe: str) -> None:
    operand = build(recipe).weights.down
    whole = operand.dequantize(torch.float64)
    expert, column = torch.tensor([0, 3, 1, 1]), torch.tensor([0, 255, 128, 7])
    assert torch.equal(operand.columns(expert, column), whole[expert, :, column])
    assert torch.equal(operand.experts(slice(2, 4)).dequantize(torch.float64), whole[2:4])


@pytest.mark.parametrize("exact", ["normal", "exact"])
@pytest.mark.parametrize("recipe", PACKED)
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


def test_a_zero_scale_is_zero_codes_in_e8m0() -> None:
    weights = build("mxfp4_bf16", scales={"kind": "zero"}, seed=1).weights
    assert weights.gate.scale is not None
    assert not weights.gate.data[1].any() and not weights.gate.scale[1].any() and weights.gate.data[0].any()
    assert not build("int4_fp8", scales={"kind": "zero"}, seed=1).weights.gate.dequantize()[1].any()


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


@pytest.mark.parametrize("recipe", PACKED)
def test_exact_operands_are_small_integers_in_varied_codes(recipe: str) -> None:
    problem = build(recipe, inputs={"kind": "exact"})
    for operand in operands(problem.weights):
        value, scale = operand.dequantize(), operand.scales()
        assert torch.equal(value, value.round()) and scale is not None and len(scale.unique()) >= 3 and power_of_two(scale)
        assert set(operand.codes().abs().unique().tolist()) == {0.0, 1.0, 2.0, 4.0}
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
