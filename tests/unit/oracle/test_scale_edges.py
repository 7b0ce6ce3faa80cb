"""Narrow scales of the intermediate: groups whose scale noise can move are found, and are a part of the model and of twins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from small_cases import make_case, problem_of

from moeguard.core.numerics import Numerics
from moeguard.oracle import twins
from moeguard.oracle.cap import cap
from moeguard.oracle.emulation import Emulation
from moeguard.oracle.flips import flip_limit
from moeguard.oracle.judge import Judge
from moeguard.oracle.reference import Reference, make_reference
from moeguard.oracle.scale_edges import scale_edges

#: amax / 6 is 17, the middle of the e4m3 values 16 and 18; of the other groups it is 16, and zero.
UNDECIDED, DECIDED = 102.0, 96.0


def rows() -> torch.Tensor:
    raw = torch.zeros(2, 48, dtype=torch.float64)
    raw[0, :3] = torch.tensor([UNDECIDED, 40.0, -9.0])
    raw[0, 16:18] = torch.tensor([DECIDED, 1.0])
    raw[1, 35] = -UNDECIDED
    return raw


def test_undecided_groups_are_found_with_their_swing() -> None:
    raw = rows()
    edges = scale_edges("nvfp4", raw, 1e-6 * raw.abs(), torch.ones(1))
    assert edges is not None
    assert (edges.slot.tolist(), edges.group.tolist(), edges.amax.tolist()) == ([0, 1], [0, 2], [UNDECIDED] * 2)
    assert edges.high.tolist() == [18.0, 18.0]
    assert edges.swing[0, :4].tolist() == [12.0, 4.0, 1.0, 0.0]  # 96 or 108, 32 or 36, 8 or 9
    assert edges.swing[1, 3].item() == 12.0
    full = edges.fill(edges.swing, raw)
    assert full.shape == raw.shape and full[0, 0].item() == 12.0 and not full[0, 16:].any()
    kept = edges.of_slots(torch.tensor([False, True]))
    assert kept is not None and kept.slot.tolist() == [0] and kept.group.tolist() == [2]
    assert edges.of_slots(torch.tensor([False, False])) is None


def test_no_edges_without_a_narrow_scale_or_where_nothing_moves() -> None:
    raw = rows()
    for rounding in ("bf16", "e4m3_1x128", "none"):
        assert scale_edges(rounding, raw, 1e-6 * raw, torch.ones(1)) is None
    assert scale_edges("nvfp4", raw * DECIDED / UNDECIDED, 1e-6 * raw.abs(), torch.ones(1)) is None
    power = torch.zeros(1, 32, dtype=torch.float64)
    power[0, :2] = torch.tensor([448.0, 3.0])  # on the edge, but both values are on either grid
    assert scale_edges("mxfp8", power, 1e-9 * power, None) is None
    power[0, 2] = 2.0**-9  # the smallest code at the scale 1, half of it at the scale 2
    edges = scale_edges("bf16+mxfp8", power, 1e-9 * power, None)
    assert edges is not None and edges.swing[0, :3].tolist() == [0.0, 0.0, 2.0**-9]


def declared() -> Numerics:
    """As FlashInfer's CUTLASS kernels round: projections and activation to bf16 before the codes."""
    return replace(Numerics.of("nvfp4"), intermediate="bf16+nvfp4", projection="bf16")


def energy(reference: Reference, answers: Iterable[torch.Tensor]) -> float:
    judge = Judge(reference)
    return sum(float(judge.normalised(answer.double()).square().mean()) for answer in answers) / 16


def test_twins_have_the_scale_flips_that_kernels_have(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(make_case("nvfp4", (33, 64, 96, 4, 2)))
    reference = make_reference(problem, declared())
    assert reference.edges is not None and len(reference.edges.slot) > 50
    bound = cap(reference)
    assert not isinstance(bound, str)
    answers = [Emulation(seed).run(problem, declared()) for seed in range(16)]
    judge = Judge(reference)
    assert all(judge.judge(answer).passed for answer in answers)
    assert all(bool(((answer.double() - reference.y).abs() <= bound).all()) for answer in answers)
    kernels, modelled = energy(reference, answers), energy(reference, twins.each_twin(reference, 16))
    monkeypatch.setattr(twins, "scale_edges", lambda *arguments: None)
    without = energy(reference, twins.each_twin(reference, 16))
    assert modelled > 1.5 * without  # flips of scales are most of it
    assert kernels < 1.5 * modelled


def test_rows_with_an_undecided_scale_keep_the_wide_limit() -> None:
    reference = make_reference(problem_of(make_case("nvfp4", (33, 64, 96, 4, 2))), declared())
    assert reference.edges is not None
    token = int(reference.slots.token[reference.edges.slot[0]])
    assert flip_limit(reference, token, 1e-3) == float("inf")
    assert flip_limit(replace(reference, edges=None), token, 1e-3) < 5.0
