"""Published comparison rules reproduce their known blind spots; the judge has none of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from spec_grid import DEFECTS, defect, draws

from moeguard.oracle.judge import Judge
from moeguard.oracle.metrics import PUBLISHED, calc_diff, helper_rate, hit_rate, published, sqnr, within_fraction, zero_sigma

#: Columns in the order of PUBLISHED; P accepted, . rejected, B accepted in bf16 only.
BLIND_SPOTS = {
    "D1": "P..P....", "D2": "PPPP.BB.", "D3": "PPPP....", "D4": "PPPP....", "D5": "PPPP.PP.", "D6": "PP.B....",
    "D7": "PP......", "D8": "PP.P.PP.", "D9": "PP......", "D10": "PP.PPPP.", "D11": "PPP..PP.",
}


@pytest.mark.soak
@pytest.mark.parametrize("recipe", ["bf16", "fp8"])
def test_blind_spots_of_published_rules(recipe: str) -> None:
    draw = next(d for _, d in draws(1, "G1", 0, [(recipe, 3e-6, "normal")]))
    judge = Judge(draw.reference)
    assert all(published(draw.healthy, draw.reference.y).values())
    assert judge.judge(draw.healthy).passed
    for name in DEFECTS:
        answer = defect(name, draw)
        got = "".join("P" if accepted else "." for accepted in published(answer, draw.reference.y).values())
        assert got == BLIND_SPOTS[name].replace("B", "P" if recipe == "bf16" else "."), name
        assert not judge.judge(answer).passed, name


@pytest.mark.parametrize(("atol", "rtol", "share", "sigma"), [
    (0.1, 0.85, 0.79, 0.532), (0.1, 0.85, 0.90, 0.405), (0.1, 0.85, 0.92, 0.381), (0.1, 0.85, 0.925, 0.374),
    (0.1, 0.2, 0.85, 0.087), (0.05, 0.3, 0.99, 0.028)])
def test_output_scale_up_to_which_zeros_are_accepted(atol: float, rtol: float, share: float, sigma: float) -> None:
    assert zero_sigma(atol, rtol, share) == pytest.approx(sigma, abs=5e-4)
    reference = torch.randn(400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    zeros = torch.zeros_like(reference)
    exact = zero_sigma(atol, rtol, share)
    assert hit_rate(zeros, reference * exact * 0.98, atol, rtol) >= share
    assert hit_rate(zeros, reference * exact * 1.02, atol, rtol) < share


def test_helper_accepts_zeros_of_small_outputs_and_fuzz_rule_always() -> None:
    reference = torch.randn(100_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    zeros = torch.zeros_like(reference)
    assert helper_rate(zeros, reference * 0.0225) >= 0.97 > helper_rate(zeros, reference * 0.0235)
    cauchy = torch.from_numpy(np.random.default_rng(0).standard_cauchy(1000))
    for data in (reference * 0.01, reference, cauchy, torch.ones(50).double()):
        assert within_fraction(torch.zeros_like(data), data, 0.15, 0.85)


def test_similarity_metrics_have_their_closed_forms() -> None:
    reference = torch.ones(500, 4, dtype=torch.float64)
    one_row = reference.clone()
    one_row[0] = 0
    share = 1 / 500
    assert calc_diff(one_row, reference) == pytest.approx(share / (2 - share))
    assert sqnr(one_row, reference) == pytest.approx(-10 * np.log10(share))
    assert calc_diff(reference * 1.03, reference) == pytest.approx(0.03**2 / 2, rel=0.05)
    assert calc_diff(reference * 0, reference * 0) == 0.0
    assert sqnr(reference, reference) == np.inf
    assert len(PUBLISHED) == 8
