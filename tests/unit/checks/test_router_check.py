"""Routers under watch: healthy ones are silent, each broken one is caught by its rule, and what else can go wrong."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch

import moeguard as mg
from moeguard.backends.routers.torch_routers import TorchArgmax, TorchScores
from moeguard.core.router import BIASED, METHODS, PROBES, RouterCase
from moeguard.fuzz.router_cases import draw_router_cases
from moeguard.mutants.broken_routers import BROKEN_ROUTERS

CASE = RouterCase(method="grouped_topk", num_tokens=9, num_experts=64, top_k=6, num_groups=8, topk_groups=3, scaling_factor=2.5)


@cache
def drawn(count: int = 78) -> tuple[RouterCase, ...]:
    return tuple(draw_router_cases(count, 0))


@pytest.mark.parametrize("router", [TorchScores(), TorchArgmax()], ids=lambda router: router.name)
def test_a_healthy_router_is_never_blamed(router: mg.Router) -> None:
    verdicts = [mg.check_router(router, case) for case in drawn()]
    assert [finding.sentence for verdict in verdicts for finding in verdict.findings] == []
    assert sum(verdict.tokens for verdict in verdicts) > 1500
    assert sum(verdict.undefined for verdict in verdicts) > 100


@pytest.mark.soak
@pytest.mark.parametrize("router", [TorchScores(), TorchArgmax()], ids=lambda router: router.name)
def test_a_healthy_router_is_never_blamed_for_long(router: mg.Router) -> None:
    for case in draw_router_cases(20_000, 1):
        assert mg.check_router(router, case).findings == ()


@pytest.mark.parametrize("kind", BROKEN_ROUTERS, ids=lambda kind: kind.name)
def test_a_broken_router_is_caught_by_its_rule(kind: type[mg.Router]) -> None:
    router, seen = kind(), set()
    for case in drawn():
        seen |= {finding.rule for finding in mg.check_router(router, case).findings}
        if kind.expected in seen:
            return
    pytest.fail(f"seen: {sorted(seen)}")


def test_every_rule_has_a_broken_router() -> None:
    assert {kind.expected for kind in BROKEN_ROUTERS} == {
        "range", "repeated", "set", "finite", "weights", "sum", "written", "bounds", "inputs"}


def test_all_methods_and_probes_are_drawn() -> None:
    seen = {(case.method, case.probe) for case in drawn(39)}
    assert {method for method, _ in seen} == set(METHODS)
    assert {probe for method, probe in seen if method in BIASED} == set(PROBES)


class Answers(TorchScores):
    name = "answers"
    returned: object = None

    def route(self, case, logits, bias, ids, weights):
        super().route(case, logits, bias, ids, weights)
        return self.returned


def test_a_router_that_raises_crashed() -> None:
    class Raises(Answers):
        def route(self, case, logits, bias, ids, weights):
            raise RuntimeError("no kernel\nimage")

    (finding,) = mg.check_router(Raises(), CASE).findings
    assert (finding.kind, finding.sentence) == ("crash", "route raised RuntimeError: no kernel image")


@pytest.mark.parametrize("call", ["supports", "weights_dtype", "precision"])
def test_one_that_raises_when_it_is_asked_crashed_too(call: str) -> None:
    class Raises(Answers):
        pass

    def fails(self: mg.Router, case: RouterCase) -> None:
        raise KeyError(case.method)

    setattr(Raises, call, fails)
    (finding,) = mg.check_router(Raises(), CASE).findings
    assert (finding.kind, finding.sentence) == ("crash", f"{call} raised KeyError: 'grouped_topk'")


def test_a_dtype_that_is_none_and_an_exit_are_crashes_too() -> None:
    class NoDtype(Answers):
        def weights_dtype(self, case):
            return None

    class Exits(Answers):
        def route(self, case, logits, bias, ids, weights):
            raise SystemExit(3)

    sentences = [mg.check_router(router, CASE).findings[0].sentence for router in (NoDtype(), Exits())]
    assert sentences == ["weights_dtype raised TypeError: returned None; allowed: a floating torch.dtype",
                         "route raised SystemExit: 3"]


def test_what_a_router_sets_for_all_of_torch_changes_no_case_after_it() -> None:
    class Sets(Answers):
        def route(self, case, logits, bias, ids, weights):
            seen.append(logits.clone())
            with torch.device("cpu"):
                super().route(case, logits, bias, ids, weights)
            torch.set_default_device("meta")

    seen: list[torch.Tensor] = []
    case = RouterCase(method="sigmoid_bias", probe="dominant", num_tokens=200, num_experts=64, top_k=4)
    try:
        for _ in range(2):
            assert mg.check_router(Sets(), case).passed
    finally:
        torch.set_default_device(None)
    assert torch.equal(seen[0], seen[1])


def test_a_router_that_returns_something_is_told() -> None:
    router = Answers()
    router.returned = torch.zeros(1)
    assert [finding.kind for finding in mg.check_router(router, CASE).findings] == ["wrong_return"]


def test_a_router_that_writes_nothing_is_told_even_if_it_was_right_a_moment_ago() -> None:
    class Once(TorchScores):
        calls = 0

        def route(self, case, logits, bias, ids, weights):
            self.calls += 1
            if self.calls == 1:
                super().route(case, logits, bias, ids, weights)

    router = Once()
    assert mg.check_router(router, CASE).passed
    (finding,) = mg.check_router(router, CASE).findings
    assert (finding.kind, finding.numbers["count"]) == ("unwritten_output", 54)


class FastMath(TorchScores):
    """exp() off by what CUDA documents of __expf, 2 + 1.173 |x| units in the last place, up or down, times ``excess``."""

    name = "fast_math"
    excess = 1.0

    def exp(self, value: torch.Tensor) -> torch.Tensor:
        sign = (torch.arange(value.shape[1]) % 2 * 2 - 1).double()
        error = (2 + 1.173 * value.abs().double()) * 2.0**-23 * sign * self.excess
        return torch.where(torch.isfinite(value), torch.exp(value.double()) * (1 + error), value.double().exp()).float()

    def scores(self, case, logits):
        if case.biased or case.method == "llama4_sigmoid":
            return 1.0 / (1.0 + self.exp(-logits))
        powers = self.exp(logits - logits.amax(1, keepdim=True))
        return powers / powers.sum(1, keepdim=True)


def test_the_margin_covers_the_fast_exponential_of_cuda_and_not_one_ten_times_worse() -> None:
    router = FastMath()
    assert [finding.sentence for case in drawn() for finding in mg.check_router(router, case).findings] == []
    router.excess = 10.0
    assert any(finding.rule == "weights" for case in drawn() for finding in mg.check_router(router, case).findings)


def test_a_router_in_bfloat16_that_says_so_is_not_blamed() -> None:
    class Coarse(TorchScores):
        name = "coarse"

        def precision(self, case):
            return mg.Precision(roundoff=2.0**-8)

        def scores(self, case, logits):
            return super().scores(case, logits).bfloat16().float()

        def select(self, case, choice):
            return super().select(case, choice if case.method == "llama4_sigmoid" else choice.bfloat16())

    assert [finding.sentence for case in drawn(39) for finding in mg.check_router(Coarse(), case).findings] == []


def test_what_a_router_does_not_support_is_not_run() -> None:
    class Picky(Answers):
        def supports(self, case):
            return mg.Support.no("eight groups only")

        def route(self, case, logits, bias, ids, weights):
            raise AssertionError

    verdict = mg.check_router(Picky(), CASE)
    assert (verdict.unsupported, verdict.findings, verdict.passed) == ("eight groups only", (), False)


def test_weights_in_bfloat16_are_asked_for_and_judged_as_such() -> None:
    class Half(TorchArgmax):
        name = "half"

        def weights_dtype(self, case):
            return torch.bfloat16

    assert all(mg.check_router(Half(), case).passed for case in drawn(39))


def test_a_finding_tells_the_place_and_the_numbers() -> None:
    (kind,) = [kind for kind in BROKEN_ROUTERS if kind.name == "router_masked_with_zero"]
    case = CASE.model_copy(update={"probe": "negative_bias"})
    (finding,) = mg.check_router(kind(), case).findings
    assert finding.kind == "routing_contract"
    assert finding.sentence.startswith("grouped_topk, negative_bias: token 0: experts [")
    assert finding.sentence.endswith("beyond the rounding of their scores; 9 of 9 tokens")
    assert finding.numbers["tokens"] == 9
    assert max(finding.numbers["scores_got"]) < 0  # the true scores of what was selected
    assert RouterCase.model_validate(finding.to_data()["case"]) == case


def test_numbers_that_json_does_not_have_are_text() -> None:
    class Nan(TorchScores):
        def route(self, case, logits, bias, ids, weights):
            super().route(case, logits, bias, ids, weights)
            weights[0, 0] = torch.nan

    (finding,) = mg.check_router(Nan(), CASE).findings
    assert (finding.rule, finding.numbers["token"]) == ("finite", 0)
    assert json.loads(json.dumps(finding.to_data(), allow_nan=False))["numbers"]["got"][0] == "nan"
