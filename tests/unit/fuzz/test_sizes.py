"""Shapes under a budget."""

from dataclasses import replace

from moeguard.fuzz.profiles import Budget, profile
from moeguard.fuzz.sizes import tp_sizes


def test_ranks_are_not_so_many_that_the_smallest_layer_breaks_the_budget():
    tight = replace(profile("smoke"), name="tight", budget=Budget(1 << 19, 1 << 17, 1 << 13))
    assert tp_sizes(tight, 8) == (2, 4, 8)
    assert tp_sizes(tight, 128) == ()  # two slots of 128 x 256 are 196,608 multiply-adds
    assert tp_sizes(profile("ci"), 128) == (2, 4, 8)
