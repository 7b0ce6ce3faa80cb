"""``moeguard run`` and ``replay`` on backends whose tuner proves nothing, or keeps an earlier cap."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import SMOKE, Called

Cli = Callable[..., Called]
PLUGIN = """
import moeguard as mg
from moeguard.mutants.broken_state import StickyCap
from moeguard.mutants.broken_tactics import TuningProvesNothing

class Both(TuningProvesNothing):
    name = "both"
    tuning_caps = StickyCap.tuning_caps

for backend in (StickyCap, TuningProvesNothing, Both):
    mg.register(backend())
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tuner") / "tuner.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


def run(cli: Cli, plugin: Path, out: Path, backend: str, *more: object) -> Called:
    return cli("run", "--plugin", plugin, "--backend", backend, *SMOKE, "--max-cases", 6, "--out", out, *more)


def test_a_vacuous_tuning_is_inconclusive_and_exits_3(cli: Cli, plugin: Path, tmp_path: Path) -> None:
    done = run(cli, plugin, tmp_path / "run", "mutant_tuning_proves_nothing", "--json")
    assert (done.code, done.data["verdict"]) == (3, "inconclusive")
    (finding,) = done.data["findings"]
    assert (finding["kind"], finding["reproduced"]) == ("vacuous_autotune", True)
    assert done.data["executions"] > 0
    again = cli("replay", tmp_path / "run" / "cases" / f"{_fingerprint(tmp_path / 'run')}.json", "--backend",
                "mutant_tuning_proves_nothing", "--plugin", plugin, "--out", tmp_path / "again", "--json")
    assert (again.code, again.data["verdict"]) == (3, "inconclusive")


def test_a_person_is_told_what_was_not_verified(cli: Cli, plugin: Path, tmp_path: Path) -> None:
    done = run(cli, plugin, tmp_path / "run", "mutant_tuning_proves_nothing")
    assert done.code == 3
    assert "inconclusive: A tuning proved nothing, so what is tuned was not verified." in done.out
    assert "each of the 3 tactics failed while it was timed" in done.out


def test_another_finding_beside_it_exits_1(cli: Cli, plugin: Path, tmp_path: Path) -> None:
    done = run(cli, plugin, tmp_path / "run", "both", "--json")
    assert (done.code, done.data["verdict"]) == (1, "findings")
    assert {finding["kind"] for finding in done.data["findings"]} == {"vacuous_autotune", "stale_state"}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sticky_cap_comes_back_in_a_worker_that_was_asked_before(cli: Cli, plugin: Path, tmp_path: Path, workers: int) -> None:
    done = run(cli, plugin, tmp_path / "run", "mutant_sticky_cap", "--workers", workers, "--json")
    assert done.code == 1
    (finding,) = done.data["findings"]
    assert (finding["kind"], finding["reproduced"]) == ("stale_state", True)
    assert finding["sentence"] == "after caps 8192, 512, 8192 the tuner works with 512"


def _fingerprint(directory: Path) -> str:
    (case,) = (directory / "cases").iterdir()
    assert json.loads(case.read_text(encoding="utf-8"))["schema"] == 1
    return case.stem
