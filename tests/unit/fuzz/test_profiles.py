"""Profiles: names, bounds, budgets and cost."""

from dataclasses import replace

import pytest

from moeguard.core.case import Case, Shape
from moeguard.core.errors import UnknownNameError
from moeguard.fuzz.profiles import DEVICES, PROFILES, Budget, cost, profile


def test_bounds() -> None:
    smoke, ci, nightly = profile("smoke"), profile("ci"), profile("nightly")
    assert (smoke.max_tokens, smoke.max_experts, smoke.max_hidden, smoke.max_intermediate) == (257, 32, 512, 512)
    assert (ci.max_tokens, ci.max_experts, ci.max_hidden, ci.max_intermediate) == (4097, 256, 4096, 4096)
    assert (nightly.max_tokens, nightly.max_experts, nightly.max_hidden) == (8193, 512, 7168)


def test_a_cpu_has_the_smaller_budget() -> None:
    for name in PROFILES:
        assert profile(name, "cuda").budget.holds(profile(name, "cpu").budget)
        assert profile(name, "cuda:1") == profile(name, "cuda")
    assert DEVICES == ("cpu", "cuda")


def test_unknown_names_say_what_is_allowed() -> None:
    with pytest.raises(UnknownNameError, match="profile: unknown value 'huge'; allowed: smoke, ci, nightly, soak"):
        profile("huge")
    with pytest.raises(UnknownNameError, match=r"device: .*allowed: cpu, cuda"):
        profile("smoke", "tpu")


def test_too_small_a_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="profile smoke: needs"):
        replace(profile("smoke"), budget=Budget(1, 1, 1))


def test_cost_counts_the_rows_of_either_format() -> None:
    case = Case(shape=Shape(num_tokens=3, hidden_size=8, intermediate_size=16, num_experts=4, top_k=2))
    assert cost(case) == Budget(weights=4 * 3 * 128, work=6 * 3 * 128, activations=6 * 24)
    assert cost(case.with_(activation_format="batched")).work == 12 * 3 * 128
    assert cost(case.with_(parallel={"ep_size": 2})).weights == 2 * 3 * 128
