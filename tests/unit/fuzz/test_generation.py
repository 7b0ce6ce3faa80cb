"""Rounds: the same in any process, without traces."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import moeguard
from moeguard.core.errors import UnknownNameError
from moeguard.fuzz.generation import distinct, draw_round
from moeguard.fuzz.profiles import profile

RECIPES = ("bf16", "fp16", "fp8_per_tensor", "fp8_block")
PROGRAM = """
import json
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import profile
print(json.dumps([case.fingerprint for case in draw_round(profile("smoke"), {recipes!r}, 7, 3)]))
"""


def test_another_process_draws_the_same_and_leaves_nothing(tmp_path: Path) -> None:
    root = Path(moeguard.__file__).parents[1]
    expected = [case.fingerprint for case in draw_round(profile("smoke"), RECIPES, 7, 3)]
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root),
                       "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("HYPOTHESIS_STORAGE_DIRECTORY", None)
        done = subprocess.run([sys.executable, "-c", PROGRAM.format(recipes=RECIPES)], cwd=tmp_path, env=environment,
                              capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == expected
        assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    draw_round(profile("smoke"), RECIPES, 8, 0)
    assert capsys.readouterr() == ("", "")


def test_rounds_and_seeds_differ() -> None:
    smoke = profile("smoke")
    rounds = [draw_round(smoke, RECIPES, seed, number) for seed in (1, 2) for number in (0, 1)]
    shared = set.intersection(*map(set, rounds))
    assert len({case for cases in rounds for case in cases}) >= 4 * smoke.round_size - 2 and not shared


def test_a_round_has_its_size_and_no_repetition() -> None:
    small = replace(profile("smoke"), round_size=9)
    cases = draw_round(small, RECIPES, 1, 0)
    assert len(cases) == len(set(cases)) == 9
    assert cases[0].shape.num_tokens == cases[0].shape.num_experts == 1
    assert cases == draw_round(small, list(RECIPES), 1, 0)


def test_repeated_cases_get_another_seed() -> None:
    case = draw_round(profile("smoke"), RECIPES, 1, 0)[0]
    assert [one.seed for one in distinct([case, case, case])] == [0, 1, 2]


def test_unknown_recipe() -> None:
    with pytest.raises(UnknownNameError, match="recipe: unknown value 'fp12'"):
        draw_round(profile("smoke"), ("fp12",), 1, 0)
    with pytest.raises(UnknownNameError, match="recipe"):
        draw_round(profile("smoke"), (), 1, 0)
