"""Exact mode: healthy kernels agree bit for bit whatever their order of sums, and a wrong answer names its culprit."""

from __future__ import annotations

import pytest
import torch
from small_cases import RECIPES, make_case, reference_of

from moeguard.core.numerics import Numerics
from moeguard.oracle.emulation import Emulation
from moeguard.oracle.judge import Judge
from moeguard.oracle.reference import Reference
from moeguard.tensors.problem import Problem


def exact_reference(recipe: str, seed: int = 0, shape: tuple[int, int, int, int, int] = (64, 256, 256, 8, 2)) -> Reference:
    return reference_of(make_case(recipe, shape, inputs={"kind": "exact"}, seed=seed))


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_order_of_sums_changes_a_bit(recipe: str) -> None:
    for seed in range(5):
        reference = exact_reference(recipe, seed)
        judge = Judge(reference)
        assert judge.informative > 0.25
        for kernel in range(5):
            judgement = judge.judge(Emulation(kernel).run(reference.problem, reference.numerics))
            assert judgement.passed, (seed, kernel, judgement.numbers)


def contribution(reference: Reference, token: int, rank: int) -> tuple[int, torch.Tensor]:
    mine = ((reference.slots.token == token) & (reference.slots.rank == rank)).nonzero()[0, 0]
    return int(reference.slots.expert[mine]), reference.expert_output[mine] * reference.slots.weight[mine]


def cast(reference: Reference, value: torch.Tensor) -> torch.Tensor:
    return value.to(reference.problem.output_dtype)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_missing_and_a_doubled_expert_are_named(recipe: str) -> None:
    reference = exact_reference(recipe)
    for sign, cause in ((-1.0, "missing"), (1.0, "doubled")):
        expert, part = contribution(reference, 11, 1)
        y = reference.y.clone()
        y[11] += sign * part
        judgement = Judge(reference).judge(cast(reference, y))
        assert judgement.failed == ("exact",)
        assert judgement.numbers["decoded"][0] == {"token": 11, "cause": cause, "expert": expert}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_swapped_pair_of_tokens_is_named(recipe: str) -> None:
    reference = exact_reference(recipe)
    y = reference.y.clone()
    y[[5, 40]] = y[[40, 5]]
    decoded = Judge(reference).judge(cast(reference, y)).numbers["decoded"]
    assert [(d["token"], d["cause"], d["of_token"]) for d in decoded] == [(5, "token", 40), (40, "token", 5)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_dropped_k_block_names_its_expert(recipe: str) -> None:
    reference = exact_reference(recipe)
    slots, down = reference.slots, reference.problem.weights.down.dequantize(torch.float64)
    kept, lost = reference.hidden[:, :128] != 0, reference.hidden[:, 128:] != 0
    slot = int(((slots.expert == 3) & kept.any(1) & lost.any(1)).nonzero()[2, 0])
    token = int(slots.token[slot])
    y = reference.y.clone()
    y[token] -= slots.weight[slot] * (down[3, :, 128:] @ reference.hidden[slot, 128:])
    judgement = Judge(reference).judge(cast(reference, y))
    assert judgement.failed == ("exact",)
    first = judgement.numbers["decoded"][0]
    assert (first["token"], first["cause"]) == (token, "partial")
    assert first["expert"] in reference.problem.flat_ids[token].tolist()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_stale_tile_is_placed(recipe: str) -> None:
    reference, stale = exact_reference(recipe), exact_reference(recipe, seed=4)
    y = reference.y.clone()
    y[:64, 64:128] = stale.y[:64, 64:128]
    judgement = Judge(reference).judge(cast(reference, y))
    assert judgement.failed == ("exact",)
    assert judgement.numbers["worst_tile"] == [0, 1]
    assert judgement.numbers["label"] == "proven"


def test_a_low_precision_combine_leaves_exact_mode() -> None:
    reference = reference_of(make_case("bf16", inputs={"kind": "exact"}), Numerics(intermediate="bf16", combine="bf16"))
    assert not reference.exact


def order_dependent(amax: float, trials: int) -> int:
    """Cases whose bf16 result depends on the order of four scaled FP8 blocks of 128."""
    generator = torch.Generator().manual_seed(0)
    changed = 0
    for _ in range(trials):
        power = torch.randint(0, 6, (4, 128), generator=generator)
        value = amax / 2.0**power * (torch.randint(0, 2, (4, 128), generator=generator) * 2 - 1)
        value[:, 0] = amax * 2.0 ** torch.randint(0, 4, (4,), generator=generator)
        scale = (value.abs().amax(1) / 448).float()
        codes = (value.float() / scale[:, None]).to(torch.float8_e4m3fn).float()
        weight = torch.randint(-1, 2, (4, 128), generator=generator).float()
        parts = (codes * weight).sum(1) * scale
        results = set()
        for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]):
            total = torch.zeros(())
            for block in order:
                total = total + parts[block]
            results.add(float(total.bfloat16()))
        changed += len(results) > 1
    return changed


def test_fp8_needs_block_maxima_of_seven_times_a_power_of_two() -> None:
    assert order_dependent(7.0, 1500) == 0
    assert order_dependent(8.0, 1500) > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("recipe", RECIPES)
def test_exact_problems_have_the_same_bits_on_a_gpu(recipe: str) -> None:
    from moeguard.tensors.problem import build_problem
    from moeguard.tensors.weights import WeightBank

    here = exact_reference(recipe)
    there: Problem = build_problem(here.problem.case, WeightBank(), "cuda")
    for name, tensor in here.problem.batch.tensors().items():
        assert torch.equal(there.batch.tensors()[name].cpu().float(), tensor.float()), name
