"""``moeguard compare``: two backends on the same cases, its result, exit codes and bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import Called

from moeguard.core.case import Case

Cli = Callable[..., Called]
PAIR = ("--backend", "emulated_cutedsl", "--backend", "emulated_cutedsl_batched")
FEW = ("--device", "cpu", "--recipe", "bf16", "--max-cases", "4")
PLUGIN = '''
import moeguard as mg
from moeguard.backends.emulated_cutedsl.batched import EmulatedCuteDslBatched

class Half(EmulatedCuteDslBatched):
    name = "half"
    def combine(self, stored, sent, weights, out):
        super().combine(stored, sent, weights * 0.5, out)

class Absent(EmulatedCuteDslBatched):
    name = "absent"
    def availability(self):
        return mg.Availability.no("flashinfer-python 0.6.6 has no [entry]")

mg.register(Half())
mg.register(Absent())
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "halves.py"
    file.write_text(PLUGIN)
    return file


def test_a_pair_that_agrees(cli: Cli) -> None:
    done = cli("compare", *PAIR, *FEW, "--json")
    assert (done.code, done.err) == (0, "")
    data = done.data
    assert (data["backends"], data["cases"], data["executions"]) == (["emulated_cutedsl", "emulated_cutedsl_batched"], 4, 8)
    assert data["wrong"] == [] and data["not_run"] == {}
    (row,) = data["rows"]
    assert row["recipe"] == "bf16" and sum(row["outcomes"].values()) == 4 and 0 < row["largest_distance"] < 1


def test_the_wrong_one_its_place_and_a_case_to_replay(cli: Cli, plugin: Path, tmp_path: Path) -> None:
    backends = ("--backend", "emulated_cutedsl", "--backend", "half", "--plugin", plugin)
    done = cli("compare", *backends, *FEW, "--out", tmp_path / "cases")
    assert done.code == 1
    assert "A: emulated_cutedsl, B: half" in done.out and "half (standard): mismatch: " in done.out
    assert "furthest apart at row" in done.out
    files = sorted((tmp_path / "cases").glob("*.json"))
    assert files and all(Case.load(file).recipe == "bf16" for file in files)
    again = cli("compare", files[0], *backends, "--device", "cpu", "--json")
    assert again.code == 1
    (item,) = again.data["wrong"]
    assert (item["outcome"], item["fingerprint"]) == ("one wrong", files[0].stem)
    assert [side["standing"] for side in item["sides"]] == ["right", "wrong"]
    assert item["distance"]["share"] > 1 and len(item["distance"]["values"]) == 2


def test_a_backend_that_cannot_run_is_named_with_its_reason(cli: Cli, plugin: Path) -> None:
    done = cli("compare", "--backend", "emulated_cutedsl", "--backend", "absent", "--plugin", plugin, *FEW)
    assert done.code == 3
    assert "not run: absent: flashinfer-python 0.6.6 has no [entry]" in done.out


@pytest.mark.parametrize("words, said", [
    (PAIR[:2], "--backend: 1 named; allowed: two different ones"),
    ((*PAIR[:2], *PAIR[:2]), "--backend: 1 named; allowed: two different ones"),
    ((*PAIR, "--backend", "torch_reference"), "--backend: 3 named"),
    ((*PAIR[:2], "--backend", "nope"), "nope"),
    ((*PAIR, "--max-cases", "0"), "--max-cases: 0; allowed: more than 0"),
    ((*PAIR, "--recipe", "fp3"), "fp3"),
    ((*PAIR, "--max-cases", "1", "--out", __file__), f"--out: {__file__} cannot be made (File exists); allowed: a folder"),
    ((*PAIR, "missing.json"), "missing.json: no such file"),
    ((*PAIR, "missing.json", "--recipe", "bf16"), "--recipe: says what is drawn; allowed: without case files"),
    ((*PAIR, "missing.json", "--seed", "0"), "--seed: says what is drawn; allowed: without case files")])
def test_bad_input_is_one_line(cli: Cli, words: tuple[str, ...], said: str) -> None:
    done = cli("compare", *words, "--device", "cpu")
    assert (done.code, done.out) == (2, "") and done.err.count("\n") == 1
    assert said in done.err
