"""Routers inside a kernel: sets are compared before numbers, near ties are skipped and counted."""

from __future__ import annotations

import torch

from moeguard.oracle.routing import compare_routing
from moeguard.tensors.routing import select


def scores(tokens: int = 50, experts: int = 16) -> torch.Tensor:
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_right_sets_pass_in_any_order() -> None:
    logits = scores()
    ids, _ = select(logits, 4, "renormalize")
    result = compare_routing(ids.flip(1).int(), logits)
    assert result.passed
    assert result.informative
    assert (result.tokens, result.skipped) == (50, 0)


def test_a_wrong_set_is_named() -> None:
    logits = scores()
    ids, _ = select(logits, 4, "renormalize")
    wrong = ids.clone()
    wrong[13, 3] = torch.argsort(logits[13], descending=True)[7]
    result = compare_routing(wrong, logits)
    assert result.wrong == (13,)
    assert result.expected == tuple(sorted(ids[13].tolist()))
    assert result.got == tuple(sorted(wrong[13].tolist()))


def test_tied_tokens_are_skipped_and_counted() -> None:
    logits = scores()
    order = torch.argsort(logits, dim=1, descending=True)
    for token in (3, 9):
        logits[token, order[token, 4]] = logits[token, order[token, 3]]
    ids = order[:, :4].clone()
    ids[3, 3] = order[3, 4]
    result = compare_routing(ids, logits)
    assert result.passed
    assert result.skipped == 2


def test_the_margin_follows_the_rounding_of_the_scores() -> None:
    logits = scores(2000)
    rounded = logits.bfloat16()
    ids, _ = select(rounded.double(), 4, "renormalize")
    assert not compare_routing(ids, logits).passed
    coarse = compare_routing(ids, logits, roundoff=2.0**-8)
    assert coarse.passed
    assert 0 < coarse.skipped < 500


def test_mostly_tied_scores_are_uninformative() -> None:
    result = compare_routing(torch.zeros(8, 1, dtype=torch.int32), torch.ones(8, 4))
    assert result.skipped == 8
    assert not result.informative


def test_undefined_scores_are_skipped() -> None:
    logits = scores(4)
    logits[2] = torch.nan
    ids, _ = select(scores(4), 2, "renormalize")
    ids[2] = 0
    result = compare_routing(ids, logits)
    assert result.passed
    assert result.skipped == 1


def test_illegal_ids_are_wrong_even_at_a_tie() -> None:
    for bad in ([0, 0], [-1, 1], [0, 4]):
        result = compare_routing(torch.tensor([bad], dtype=torch.int32), torch.ones(1, 4))
        assert result.wrong == (0,), bad
