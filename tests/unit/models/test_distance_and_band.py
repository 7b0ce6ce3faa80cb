"""How far logits are from others, and whether that is noise."""

from __future__ import annotations

import math

import pytest
import torch

from moeguard.models.band import Band, place
from moeguard.models.distance import Distance, distance

LOGITS = torch.linspace(-2, 3, 5 * 7).view(5, 7).sin()


def far(*error: float) -> Distance:
    return Distance(torch.tensor(error, dtype=torch.float64), (0.0, 0.0), 0, ())


def test_a_constant_for_a_position_changes_nothing() -> None:
    one = distance(LOGITS + torch.arange(5.0)[:, None], LOGITS, None, None)
    assert one.overall < 1e-6 and one.kl[1] < 1e-12 and one.flips == 0 and one.diverged == ()


def test_error_divergence_and_flips_are_those_of_the_definition() -> None:
    changed = LOGITS.clone()
    changed[2, 4] += 7.0
    one = distance(changed, LOGITS, None, None)
    assert one.error.nonzero().flatten().tolist() == [2]
    assert float(one.error[2]) == pytest.approx(7 * math.sqrt((1 / 7) * (6 / 7)))
    p, q = LOGITS[2].double().softmax(0), changed[2].double().softmax(0)
    assert one.kl == (pytest.approx(float((p * (p / q).log()).sum()) / 5), pytest.approx(float((p * (p / q).log()).sum())))
    assert one.flips == 1


def test_more_positions_than_are_compared_at_a_time() -> None:
    many = LOGITS.repeat(40, 1)
    changed = many.clone()
    changed[[3, 150], 0] += 1.0
    assert distance(changed, many, None, None).error.nonzero().flatten().tolist() == [3, 150]


def test_what_is_not_finite_is_infinitely_far() -> None:
    changed = LOGITS.clone()
    changed[1, 0] = torch.nan
    one = distance(changed, LOGITS, None, torch.tensor([[1, 2], [3, 4]]))
    assert one.error.isinf().tolist() == [False, True, False, False, False]
    assert (one.overall, one.kl[1], one.flips, one.diverged) == (math.inf, math.inf, 1, (0, 0))


def test_where_texts_part() -> None:
    base = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    text = torch.tensor([[1, 2, 3], [1, 9, 3], [9, 9, 9]])
    assert distance(LOGITS, LOGITS, text, base).diverged == (None, 1, 0)


def test_the_noisier_healthy_arm_is_the_yardstick() -> None:
    band = Band.of([far(1.0, 2.0, 1.0), far(2.0, 1.0, 1.0)])
    assert band.position.tolist() == [2.0, 2.0, 1.0] and band.overall == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(("error", "outcome"), [
    ([1.0] * 8, "within noise"), ([1.9] * 8, "within noise"), ([2.1] * 8, "outside noise"),
    ([1.0] * 7 + [1.9], "within noise"), ([1.0] * 7 + [2.1], "outside noise"), ([1.0] * 7 + [math.inf], "outside noise"),
])
def test_an_arm_is_noise_on_the_whole_and_at_each_position(error: list[float], outcome: str) -> None:
    band = Band.of([far(*[1.0] * 8), far(*[0.5] * 8)])
    placed = place(far(*error), band)
    assert placed.outcome == outcome and placed.position == max(error)


def test_a_position_that_is_quiet_by_chance_is_no_yardstick() -> None:
    band = Band.of([far(1.0, 1.0, 1.0, 0.01)])
    assert place(far(1.0, 1.0, 1.0, 0.8), band).outcome == "within noise"


@pytest.mark.parametrize("healthy", [[0.0, 0.0], [math.inf, 1.0]])
def test_without_a_yardstick_nothing_is_said(healthy: list[float]) -> None:
    assert place(far(1.0, 1.0), Band.of([far(*healthy)])).outcome == "cannot tell"
