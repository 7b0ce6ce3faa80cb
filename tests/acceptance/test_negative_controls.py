"""Published reports in which the kernel was right and the reference wrong: nothing may be blamed on a backend there."""

from __future__ import annotations

import torch

import moeguard as mg
from moeguard.backends.routers.torch_routers import TorchArgmax, TorchScores
from moeguard.backends.torch_reference import TorchReference
from moeguard.core.case import Case
from moeguard.core.router import RouterCase
from moeguard.mutants.broken_routers import MaskedWithZero
from moeguard.tensors.logits import make_router_inputs
from moeguard.tensors.operand import Batch
from moeguard.tensors.problem import build_problem
from moeguard.tensors.routing import GROUPS, select
from moeguard.tensors.weights import WeightBank


def case(**fields) -> Case:
    return Case.model_validate(fields)


#: flashinfer#3068: FP8 per tensor, one token, two experts, hidden size 512; 11 % of the elements were said to be wrong.
REPORTED = case(shape={"num_tokens": 1, "hidden_size": 512, "intermediate_size": 128, "num_experts": 2, "top_k": 2},
                recipe="fp8_per_tensor")


class TestFp8PerTensor:
    """A reference that leaves the intermediate unrounded disagrees with every healthy kernel, more so the larger H is."""

    def naive(self, batch: Batch, weights) -> torch.Tensor:
        x, total = batch.x.dequantize(), 0
        for expert in range(2):
            gate, up, down = (matrix.dequantize()[expert] for matrix in (weights.gate, weights.up, weights.down))
            hidden = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
            share = (batch.topk_weights * (batch.topk_ids == expert)).sum(1, keepdim=True)
            total = total + share * (hidden @ down.T)
        return total

    def test_a_healthy_kernel_is_not_blamed(self):
        for seed in range(8):
            for hidden in (128, 512, 2048):
                one = REPORTED.with_(shape={"hidden_size": hidden}, seed=seed)
                assert mg.check(TorchReference(), one).passed

    def test_the_naive_reference_would_have_blamed_it(self):
        problem = build_problem(REPORTED, WeightBank())
        out = torch.empty(problem.output_shape, dtype=problem.output_dtype)
        backend = TorchReference()
        backend.run(backend.prepare(problem.weights, REPORTED), problem.batch, out)
        naive = self.naive(problem.batch, problem.weights)
        error = (out.float() - naive).abs() / naive.abs().mean()
        assert float((error > 0.02).float().mean()) > 0.05  # far beyond the rounding of bf16, and still no defect


def test_experts_outside_of_the_chosen_groups_are_never_selected():
    """flashinfer#4639: with negative scores inside the chosen groups, masking the others with 0 selects the wrong ones."""
    experts, top_k = 4 * GROUPS, 3
    logits = torch.full((1, experts), -20.0, dtype=torch.float64)
    logits[0, :8] = torch.tensor([-3.0, -4.0, -5.0, -6.0, -3.5, -4.5, -5.5, -6.5])
    ids, weights = select(logits, top_k, "grouped_topk")
    assert sorted(ids[0].tolist()) == [0, 1, 4]
    torch.testing.assert_close(weights.sum(1), torch.ones(1, dtype=torch.float64))


class TestGroupedRouting:
    """flashinfer#4639 again, for routers: negative biased scores in the chosen groups, and a reference that masks with 0."""

    CASE = RouterCase(method="grouped_topk", num_tokens=64, num_experts=256, top_k=8, num_groups=8, topk_groups=4,
                      scaling_factor=2.5, probe="negative_bias")

    def test_routers_that_mask_with_minus_infinity_are_not_blamed(self):
        for seed in range(8):
            for router in (TorchScores(), TorchArgmax()):
                assert mg.check_router(router, self.CASE.model_copy(update={"seed": seed})).passed

    def test_the_reference_of_the_report_would_have_blamed_them_all(self):
        logits, bias = make_router_inputs(self.CASE)
        answers = []
        for router in (MaskedWithZero(), TorchScores()):
            ids, weights = torch.empty(64, 8, dtype=torch.int32), torch.empty(64, 8)
            router.route(self.CASE, logits, bias, ids, weights)
            answers.append(ids.sort(dim=1).values)
        assert (answers[0] != answers[1]).any(1).all()
        (finding,) = mg.check_router(MaskedWithZero(), self.CASE).findings
        assert (finding.kind, finding.rule, finding.numbers["tokens"]) == ("routing_contract", "set", 64)
