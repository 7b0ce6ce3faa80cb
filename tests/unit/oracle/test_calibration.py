"""Boundary shapes: healthy executions raise no alarm, and p-values are conservative."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_cases import RECIPES, TABLE

from moeguard.oracle.calibration import DECADES, as_json, as_markdown, calibrate, draw_case, upper_bound


@pytest.mark.soak
def test_boundary_executions_raise_no_alarm() -> None:
    tallies = calibrate(800, 11, RECIPES)
    assert sum(tally.executions for tally in tallies.values()) == 800
    for recipe, tally in tallies.items():
        assert not tally.alarms, (recipe, tally.alarms)
        assert sum(tally.candidates.values()) <= 8, (recipe, tally.candidates)
        for decade in DECADES:
            assert tally.block_tail[decade] <= 8 + 200 * 10.0**-decade


@pytest.mark.soak
def test_twenty_thousand_executions() -> None:
    tallies = calibrate(20_000, 12, RECIPES)
    assert not sum(sum(tally.alarms.values()) for tally in tallies.values())


def test_reports_state_the_bound(tmp_path: Path) -> None:
    tallies = calibrate(16, 5, ("bf16", "fp8_block"))
    text = as_markdown(tallies, 5)
    assert f"{upper_bound(0, 2):.1e}" in text  # two references: repeats on one reference prove nothing more
    data = json.loads(json.dumps(as_json(tallies)))
    assert data["bf16"]["executions"] == 8


def test_drawn_cases_stay_within_the_boundary_shapes() -> None:
    rng = np.random.default_rng(0)
    for recipe in RECIPES:
        for _ in range(50):
            shape = draw_case(rng, recipe).shape
            assert 1 <= shape.num_tokens <= 127
            group = TABLE[recipe].group
            assert 8 <= shape.hidden_size <= (200 if group == 1 else 256) and shape.hidden_size % group == 0
            assert 8 <= shape.intermediate_size <= (128 if group == 1 else 256) and shape.intermediate_size % group == 0
            assert shape.top_k <= min(8, shape.num_experts)
