"""The CuteDSL emulations: their parts against what they stand for, and the whole under every check."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from moeguard.backends import registry
from moeguard.backends.emulated_cutedsl import casts, grids
from moeguard.backends.emulated_cutedsl.batched import TILE, EmulatedCuteDslBatched, dispatch
from moeguard.backends.emulated_cutedsl.standard import EmulatedCuteDsl
from moeguard.core.case import Case
from moeguard.engine.check import check
from moeguard.quant.blocks import fake_quantize
from moeguard.tensors.problem import Problem, build_problem
from moeguard.tensors.weights import WeightBank


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


SHAPE = {"num_tokens": 21, "hidden_size": 128, "intermediate_size": 128, "num_experts": 8, "top_k": 3}
NAMES = ("emulated_cutedsl", "emulated_cutedsl_batched")


def build(**fields: object) -> Problem:
    return build_problem(Case.model_validate({"shape": SHAPE, "routing": {"kind": "skewed"}} | fields), WeightBank())


@pytest.mark.parametrize("rounding, width", [
    *((point, 200) for point in ("bf16", "fp16", "e4m3_per_tensor", "e4m3_per_token", "e4m3_1x128", "bf16+e4m3_per_tensor")),
    ("mxfp8", 224), ("nvfp4", 208)])
def test_both_round_as_the_codecs_do(rounding: str, width: int) -> None:
    """Rows from far below the smallest code to far above the largest, one of zeros, and a last block that may be ragged."""
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(64, width, generator=generator) * torch.exp2(torch.arange(-24.0, 40.0))[:, None].clamp(max=2.0**12)
    value[5], value[:, 7] = 0.0, torch.exp2(torch.randint(-12, 4, (64,), generator=generator).float())
    static = torch.tensor([0.125])
    wanted = fake_quantize(value, rounding, static)[0]
    assert torch.equal(casts.requantise(value, rounding, static), wanted)
    near = grids.on_grid(value, rounding, static)
    if rounding in ("e4m3_per_token", "e4m3_1x128"):  # the last bit of a reciprocal is another one
        torch.testing.assert_close(near, wanted, rtol=2.0**-22, atol=0)
    else:
        assert torch.equal(near, wanted)


def test_the_e4m3_grid_is_that_of_the_dtype() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    finite = codes[torch.isfinite(codes)].sort().values
    between = torch.cat([finite, (finite[1:] + finite[:-1]) / 2, finite * 1.03])
    assert torch.equal(grids.E4M3.nearest(between), between.clamp(-448, 448).to(torch.float8_e4m3fn).float())
    assert bool(torch.isnan(grids.E4M3.nearest(torch.tensor([torch.nan]))).all())


@pytest.mark.parametrize("rounding", ["none+e5m2", "e2m1"])
def test_an_unknown_rounding_point_is_refused(rounding: str) -> None:
    with pytest.raises(ValueError, match="rounding point"):
        casts.requantise(torch.ones(1, 1), rounding, None)
    with pytest.raises(ValueError, match="rounding point"):
        grids.on_grid(torch.ones(1, 1), rounding, None)


@pytest.mark.parametrize("inter", [8, 64, 72, 128, 200])
def test_separating_undoes_interleaving(inter: int) -> None:
    """Every row of up and of gate comes back once, in order; blocks of up are first."""
    backend = EmulatedCuteDsl()
    up, gate = torch.arange(inter).float()[None], torch.arange(inter).float()[None] + 1000
    both = backend.interleave(up, gate)
    block = min(inter, 64)
    assert both[0, :2 * block].tolist() == [*range(block), *range(1000, 1000 + block)]
    again = backend.separate(both)
    assert torch.equal(again[0], up) and torch.equal(again[1], gate)


def test_dispatch_gives_each_local_slot_a_row_of_its_own() -> None:
    case = Case.model_validate({"shape": SHAPE, "parallel": {"ep_size": 2, "ep_rank": 1}})
    ids = torch.tensor([[4, 5, 0], [5, 5, 7], [-1, 99, 4]], dtype=torch.int32)
    sent = dispatch(ids, case)
    assert sent.mine.tolist() == [[True, True, False], [True, True, True], [False, False, True]]
    assert sent.counts.tolist() == [2, 3, 0, 1]
    rows = {(int(e), int(p)) for e, p in zip(sent.expert[sent.mine], sent.place[sent.mine], strict=True)}
    assert rows == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (3, 0)}


@pytest.mark.parametrize("recipe", ["bf16", "fp8_block"])
def test_the_masked_kernel_leaves_rows_beyond_the_count_alone(recipe: str) -> None:
    problem = build(recipe=recipe, activation_format="batched")
    counts, backend = problem.batch.expert_num_tokens, EmulatedCuteDslBatched()
    assert counts is not None and problem.valid is not None
    assert bool((counts % TILE != 0).any())
    out = torch.full(problem.output_shape, 7.0, dtype=problem.output_dtype)
    backend.run(backend.prepare(problem.weights, problem.case), problem.batch, out)
    rows = out.view(-1, out.shape[2])
    assert bool((rows[~problem.valid] == 7.0).all())
    assert bool(torch.isfinite(rows[problem.valid]).all()) and not bool((rows[problem.valid] == 7.0).all(1).any())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fields", [
    {"recipe": "mxfp4_bf16", "parallel": {"ep_size": 4, "ep_rank": 2}}, {"recipe": "nvfp4", "activation_format": "batched"},
    {"recipe": "fp8_block", "activation_format": "batched", "routing": {"kind": "one_expert"}},
    {"routing": {"kind": "duplicate_ids"}, "layout": {"kind": "nan_padding"}, "weights": {"bias": True}},
    {"shape": SHAPE | {"num_tokens": 0}}], ids=str)
def test_right_under_every_check(name: str, fields: dict[str, object]) -> None:
    case = Case.model_validate({"shape": SHAPE, "routing": {"kind": "skewed"}, "seed": 7} | fields)
    verdict = check(registry.get(name), case)
    assert verdict.passed, verdict.findings
