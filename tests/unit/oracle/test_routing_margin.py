"""The verdict on a router's answer: which sets and weights a correct router may give, by brute force and at the edge."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_brute_force import route, sets

from moeguard.core.router import METHODS, Precision, RouterCase
from moeguard.oracle.routing import RoutingJudgement, judge_routing
from moeguard.oracle.scores import best, scores
from moeguard.tensors.counter import Stream
from moeguard.tensors.routing import GROUPS, select


def one(method: str, experts: int, top_k: int, **fields) -> RouterCase:
    return RouterCase(method=method, num_tokens=1, num_experts=experts, top_k=top_k, **fields)


def judged(case: RouterCase, logits: list[float], ids: list[int], weights: list[float] | None = None,
           bias: list[float] | None = None, **precision) -> RoutingJudgement:
    """The verdict on one token; the right weights unless others are given."""
    row = torch.tensor([logits])
    shift = torch.tensor(bias or [0.0] * len(logits)) if case.biased else None
    if weights is None:
        exact = scores(case, row, shift, Precision()).exact_value[0]
        total = exact[ids].sum() if case.normalised else exact.sum() if case.method == "softmax_topk" else 1.0
        weights = (exact[ids] / total * case.scaling_factor).tolist()
    return judge_routing(case, row, shift, torch.tensor([ids]), torch.tensor([weights]), Precision(**precision))


def rules(judgement: RoutingJudgement) -> list[str]:
    return [fault.rule for fault in judgement.faults]


def cases() -> st.SearchStrategy[RouterCase]:
    """At most eight experts, so that every set can be tried."""
    plain = st.tuples(st.sampled_from(METHODS), st.integers(2, 6)).flatmap(
        lambda drawn: st.integers(1, drawn[1]).map(lambda top_k: one(*drawn, top_k)))
    grouped = st.sampled_from([(2, 2), (2, 3), (3, 2), (4, 2), (2, 4)]).flatmap(
        lambda drawn: st.integers(1, drawn[0]).flatmap(lambda kept: st.integers(1, min(4, kept * drawn[1])).map(
            lambda top_k: one("grouped_topk", drawn[0] * drawn[1], top_k, num_groups=drawn[0], topk_groups=kept))))
    return st.one_of(plain, grouped, grouped)


def close(size: int, near: float) -> st.SearchStrategy[list[float]]:
    """Numbers that are equal, a few roundings apart, or far apart."""
    return st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.integers(-3, 3)).map(
        lambda drawn: drawn[0] + drawn[1] * near), min_size=size, max_size=size)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_set_is_allowed_exactly_when_some_scores_within_the_bounds_make_it_the_best(data: st.DataObject) -> None:
    case = data.draw(cases())
    coarse = 2.0**-8
    logits = data.draw(close(case.num_experts, coarse * 4))
    bias = data.draw(close(case.num_experts, coarse * 2)) if case.biased else None
    shift = torch.tensor(bias) if bias else None
    found = scores(case, torch.tensor([logits]), shift, Precision(coarse))
    allowed = set(sets(case, found.choice.low[0].tolist(), found.choice.high[0].tolist(), coarse))
    every = [frozenset(chosen) for chosen in combinations(range(case.num_experts), case.top_k)]
    for chosen, wrong in ((allowed, 0), (set(every) - allowed, len(every) - len(allowed))):
        ids = torch.tensor([sorted(one) for one in chosen]).view(-1, case.top_k)
        rows = torch.tensor([logits]).expand(len(ids), -1)
        result = judge_routing(case, rows, shift, ids, torch.ones(ids.shape), Precision(coarse))
        assert sum(fault.count for fault in result.faults if fault.rule == "set") == wrong


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_answer_by_definition_is_right(data: st.DataObject) -> None:
    case = data.draw(cases()).model_copy(update={"scaling_factor": 2.5})
    number = st.floats(-20, 20, width=32)
    logits = data.draw(st.lists(number, min_size=case.num_experts, max_size=case.num_experts))
    bias = data.draw(st.lists(st.floats(-2, 2, width=32), min_size=case.num_experts, max_size=case.num_experts))
    ids, weights = route(case, logits, bias if case.biased else None)
    result = judged(case, logits, ids, weights, bias)
    assert rules(result) == []


class TestMargin:
    """Two experts whose scores differ by a little less, or a little more, than the margin."""

    @pytest.mark.parametrize("method", ["softmax_topk", "renormalize"])
    def test_softmax(self, method: str) -> None:
        case, u = one(method, 3, 2), 2.0**-24
        margin = 2 * u * (8 + 4 * 1.0)  # both scores lie 1 below the largest logit
        for gap, wrong in ((margin * 0.9, []), (margin * 1.2, ["set"])):
            row = torch.tensor([[0.0, -1.0, -1.0 - gap]], dtype=torch.float64)
            result = judge_routing(case, row, None, torch.tensor([[0, 2]]), _weights(case, row, [0, 2]))
            assert rules(result) == wrong
            assert result.near_ties == (not wrong)

    @pytest.mark.parametrize("bias", [0.0, 1.0, 12.0])
    def test_sigmoid_and_bias(self, bias: float) -> None:
        case, u = one("sigmoid_bias", 2, 1), 2.0**-24
        margin = 2 * u * (0.5 * (4 * 0.5 + 8) + abs(0.5 + bias))  # logits 0: sigmoid 1/2, and so is the rest
        for gap, wrong in ((margin * 0.9, []), (margin * 1.2, ["set"])):
            shift = torch.tensor([bias, bias - gap], dtype=torch.float64)
            result = judge_routing(case, torch.zeros(1, 2), shift, torch.tensor([[1]]), torch.ones(1, 1))
            assert rules(result) == wrong

    def test_groups_have_the_rounding_of_two_scores_and_of_their_sum(self) -> None:
        case, u = one("grouped_topk", 4, 1, num_groups=2, topk_groups=1), 2.0**-24
        margin = 2 * (0.5 * (4 * 0.5 + 8) * u + 12.5 * u) + 25 * u  # of the scores 12.5, and of the sum 25
        for gap, wrong in ((margin * 0.9, []), (margin * 1.2, ["set"])):
            shift = torch.tensor([12.0, 12.0, 12.0 - gap, 12.0 - gap], dtype=torch.float64)
            result = judge_routing(case, torch.zeros(1, 4), shift, torch.tensor([[2]]), torch.ones(1, 1))
            assert rules(result) == wrong

    def test_llama4_ranks_logits_which_have_no_error(self) -> None:
        case = one("llama4_sigmoid", 2, 1)
        above = math.nextafter(20.0, 21.0)
        row = torch.tensor([[20.0, above]], dtype=torch.float64)
        assert rules(judge_routing(case, row, None, torch.tensor([[1]]), torch.ones(1, 1))) == []
        assert rules(judge_routing(case, row, None, torch.tensor([[0]]), torch.ones(1, 1))) == ["set"]

    def test_what_is_declared_is_granted_and_no_more(self) -> None:
        case = one("sigmoid_bias", 3, 1)
        logits = [0.5, 0.498, 0.47]
        assert rules(judged(case, logits, [1])) == ["set"]
        assert rules(judged(case, logits, [1], roundoff=2.0**-8)) == []
        assert rules(judged(case, logits, [1], sigmoid_error=2.0**-12)) == []
        assert rules(judged(case, logits, [2], sigmoid_error=2.0**-12)) == ["set"]

    def test_a_near_tie_of_groups_frees_the_choice_of_the_group_and_nothing_in_it(self) -> None:
        case = one("grouped_topk", 6, 1, num_groups=3, topk_groups=1)
        logits = [2.0, 1.0, 2.0, 1.0, 0.0, 0.0]
        assert [rules(judged(case, logits, [expert])) for expert in range(6)] == [[], ["set"], [], ["set"], ["set"], ["set"]]

    def test_experts_of_two_groups_need_both_to_be_kept(self) -> None:
        case = one("grouped_topk", 6, 2, num_groups=3, topk_groups=1)
        logits = [2.0, 1.0, 2.0, 1.0, 0.0, 0.0]
        assert rules(judged(case, logits, [0, 1])) == []
        assert rules(judged(case, logits, [0, 2])) == ["set"]


def _weights(case: RouterCase, row: torch.Tensor, ids: list[int]) -> torch.Tensor:
    exact = torch.softmax(row, 1)[:, ids]
    return exact / exact.sum() if case.normalised else exact


class TestWeights:
    @pytest.mark.parametrize(("method", "logits", "weights"), [
        ("softmax_topk", [1.0, 0.0, -1.0], [0.66524096, 0.24472847]),
        ("renormalize", [1.0, 0.0, -1.0], [0.73105858, 0.26894142]),
        ("sigmoid_bias", [1.0, 0.0, -1.0], [0.593845485, 0.406154515]),
        ("llama4_sigmoid", [1.0, 0.0, -1.0], [0.73105858, 0.5]),
    ])
    def test_a_weight_is_right_to_its_rounding_and_wrong_beyond_it(self, method, logits, weights) -> None:
        case = one(method, 3, 2)
        assert rules(judged(case, logits, [0, 1], weights)) == []
        assert rules(judged(case, logits, [1, 0], weights[::-1])) == []
        assert rules(judged(case, logits, [0, 1], [weights[0] * (1 + 1e-5), weights[1]])) == ["weights"]
        assert rules(judged(case, logits, [1, 0], weights)) == ["weights"]

    def test_weights_in_bfloat16_are_rounded_once(self) -> None:
        case, row = one("softmax_topk", 3, 2), torch.tensor([[1.0, 0.0, -1.0]])
        right = torch.softmax(row, 1)[:, :2].bfloat16()
        assert judge_routing(case, row, None, torch.tensor([[0, 1]]), right).faults == ()
        assert judge_routing(case, row, None, torch.tensor([[0, 1]]), right.float()).faults != ()
        assert judge_routing(case, row, None, torch.tensor([[0, 1]]), right * 1.02).faults != ()

    def test_weights_that_vanish_break_the_sum_whatever_is_declared(self) -> None:
        case, logits = one("sigmoid_bias", 4, 2), [-18.0, -18.5, -19.0, -20.0]
        assert rules(judged(case, logits, [0, 1], [0.0, 0.0], sigmoid_error=2.0**-12)) == ["sum"]
        assert rules(judged(case, logits, [0, 1], [0.9, 0.1], sigmoid_error=2.0**-12)) == []
        assert rules(judged(case, logits, [0, 1], [0.9, 0.1])) == ["weights"]

    def test_with_and_without_the_epsilon_of_deepseek_is_right(self) -> None:
        case, logits = one("sigmoid_bias", 2, 2), [-46.0, -46.0]  # a sum of 2e-20
        share = 1.0530617e-20 / (2 * 1.0530617e-20 + 1e-20)
        assert rules(judged(case, logits, [0, 1], [0.5, 0.5])) == []
        assert rules(judged(case, logits, [0, 1], [share, share])) == []
        assert rules(judged(case, logits, [0, 1], [0.3, 0.3])) == ["weights"]

    def test_finite_logits_have_finite_weights_even_where_float32_has_no_sigmoid(self) -> None:
        case = one("sigmoid_bias", 3, 2)
        assert rules(judged(case, [-200.0, -210.0, -220.0], [0, 1], [0.0, 0.0])) == []
        assert rules(judged(case, [-200.0, -210.0, -220.0], [0, 1], [math.nan, math.nan])) == ["finite"]


class TestProbes:
    """What is accepted of a row that defines no answer, or only a part of it."""

    @pytest.mark.parametrize("logits", [[math.nan] * 4, [0.0, math.nan, 1.0, 2.0], [-math.inf] * 4])
    @pytest.mark.parametrize("method", METHODS)
    def test_undefined_rows_need_ids_in_range_that_differ(self, method: str, logits: list[float]) -> None:
        case = one(method, 4, 2)
        for ids, wrong in (([3, 1], []), ([0, 0], ["repeated"]), ([0, 4], ["range"]), ([-1, 2], ["range"])):
            result = judged(case, logits, ids, [math.nan, math.nan])
            assert rules(result) == wrong
            assert result.undefined == 1

    def test_what_is_finite_goes_before_minus_infinity(self) -> None:
        case = one("renormalize", 4, 2)
        logits = [-math.inf, -3.0, -math.inf, -math.inf]
        assert rules(judged(case, logits, [1, 3])) == []
        assert rules(judged(case, logits, [0, 3], [0.5, 0.5])) == ["set"]

    def test_a_set_is_told_with_its_scores(self) -> None:
        (fault,) = judged(one("renormalize", 4, 2), [3.0, 2.0, 1.0, 0.0], [0, 2]).faults
        assert (fault.rule, fault.token, fault.count) == ("set", 0, 1)
        assert fault.clause == "experts [2] were selected instead of [1], beyond the rounding of their scores"
        assert fault.numbers["scores_got"] == pytest.approx([math.exp(-2)])
        assert fault.numbers["scores_expected"] == pytest.approx([math.exp(-1)])

    def test_a_token_is_told_of_once_and_tokens_are_counted(self) -> None:
        case, rows = one("renormalize", 4, 2), torch.tensor([[3.0, 2.0, 1.0, 0.0]] * 3)
        result = judge_routing(case, rows, None, torch.tensor([[0, 1], [3, 2], [3, 0]]), torch.full((3, 2), math.nan))
        assert [(fault.rule, fault.token, fault.count) for fault in result.faults] == [("set", 1, 2), ("finite", 0, 1)]

    def test_no_tokens(self) -> None:
        case = RouterCase(method="grouped_topk", num_tokens=0, num_experts=8, top_k=2, num_groups=4, topk_groups=2)
        result = judge_routing(case, torch.empty(0, 8), torch.zeros(8), torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 2))
        assert (result.tokens, result.faults) == (0, ())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_expected_ids_of_a_report_are_those_by_definition(data: st.DataObject) -> None:
    case = data.draw(cases())
    logits = data.draw(st.lists(st.floats(-5, 5, width=16), min_size=case.num_experts, max_size=case.num_experts, unique=True))
    bias = [0.0] * case.num_experts
    found = scores(case, torch.tensor([logits]), torch.tensor(bias) if case.biased else None, Precision())
    assert sorted(best(found.exact_choice, case)[0].tolist()) == sorted(route(case, logits, bias)[0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("experts", "top_k"), [(16, 4), (16, 8), (8, 1), (6, 3)])
def test_the_routing_of_moe_cases_is_one_of_a_right_router(method: str, experts: int, top_k: int) -> None:
    logits = Stream("moe-routing").normal("logits", 200 * experts).double().view(200, experts) - 3.0
    ids, weights = select(logits, top_k, method)
    grouped = {"num_groups": GROUPS, "topk_groups": GROUPS // 2} if method == "grouped_topk" and experts % GROUPS == 0 else {}
    case = RouterCase(method=method, num_tokens=200, num_experts=experts, top_k=top_k, **grouped)
    result = judge_routing(case, logits, torch.zeros(experts) if case.biased else None, ids, weights)
    assert (result.faults, result.near_ties) == ((), 0)
