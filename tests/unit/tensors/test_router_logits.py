"""What the probes of a router case put into logits and bias."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from moeguard.core.errors import CaseError
from moeguard.core.router import PROBES, RouterCase
from moeguard.tensors.logits import make_router_inputs

CASE = RouterCase(method="sigmoid_bias", num_tokens=200, num_experts=64, top_k=6)


def made(probe: str, **fields) -> tuple[torch.Tensor, torch.Tensor]:
    logits, bias = make_router_inputs(CASE.model_copy(update={"probe": probe, **fields}))
    assert bias is not None
    return logits, bias


def test_equal_cases_have_equal_bits_and_other_seeds_others() -> None:
    for probe in PROBES:
        first, second, other = made(probe), made(probe), made(probe, seed=1)
        assert torch.equal(first[0], second[0]) or probe in ("nan",)
        assert first[0].shape == (200, 64)
        assert not torch.equal(first[0], other[0])


def test_logits_and_bias_have_the_dtype_of_the_case_and_bias_only_where_there_is_one() -> None:
    logits, bias = made("normal", dtype="bfloat16")
    assert (logits.dtype, bias.dtype, bias.shape) == (torch.bfloat16, torch.bfloat16, (64,))
    assert make_router_inputs(RouterCase(method="renormalize", num_tokens=1, num_experts=4, top_k=1)).bias is None


def test_ties_and_near_ties() -> None:
    logits, bias = made("ties")
    assert set(logits.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert not bias.any()
    for dtype in ("float32", "bfloat16"):
        near = made("near_ties", dtype=dtype)[0].float()
        assert 10 < len(near.unique()) <= 15
        assert (near - near.round(decimals=1)).abs().max() < 0.05


def test_negative_scores() -> None:
    assert ((made("all_negative")[0] + 5).abs() < 4).all()
    logits, bias = made("negative_bias")
    assert (torch.sigmoid(logits) + bias).max() < 0


def test_cancellation() -> None:
    logits, bias = made("bias_cancellation")
    assert torch.sigmoid(logits).max() < 1e-6
    assert set(bias.tolist()) == {0.0, 12.0}


def test_nan_in_whole_rows_in_one_place_and_nowhere() -> None:
    counts = torch.isnan(made("nan")[0]).sum(1)
    assert set(counts.tolist()) == {0, 1, 64}
    assert counts[0] == 64


def test_minus_infinity_leaves_nothing_one_too_few_one_too_many_or_all() -> None:
    finite = torch.isfinite(made("minus_infinity")[0]).sum(1)
    assert set(finite.tolist()) == {0, 5, 7, 64}
    assert finite[0] == 0


def test_one_expert_is_far_ahead() -> None:
    assert ((made("dominant")[0] > 90).sum(1) == 1).all()


@pytest.mark.parametrize(("fields", "words"), [
    ({"top_k": 65}, "top_k: 65 exceeds the 64 experts to choose from"),
    ({"num_groups": 2}, "num_groups and topk_groups are 1 unless"),
    ({"method": "grouped_topk", "num_groups": 5}, "num_groups: 5 does not divide num_experts 64"),
    ({"method": "grouped_topk", "num_groups": 4, "topk_groups": 5}, "topk_groups: 5 exceeds num_groups 4"),
    ({"method": "grouped_topk", "num_groups": 64}, "leaves one expert a group"),
    ({"method": "grouped_topk", "num_groups": 32}, "top_k: 6 exceeds the 2 experts to choose from"),
    ({"method": "renormalize", "probe": "negative_bias"}, "probe: negative_bias is for the methods sigmoid_bias, grouped_topk"),
])
def test_impossible_cases_are_refused(fields: dict, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RouterCase.model_validate(CASE.model_dump() | fields)


def test_a_case_is_read_from_json_or_refused_by_field() -> None:
    assert RouterCase.from_json(CASE.model_dump_json()) == CASE
    with pytest.raises(CaseError, match="^--case: top_k: input should be a valid integer"):
        RouterCase.from_json(CASE.model_dump_json().replace('"top_k":6', '"top_k":"six"'))
