"""End to end: a campaign with a healthy and a broken backend; the gate allows the one, refuses the other and names the tactic."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from commandline import SMOKE, call

import moeguard as mg
from moeguard.core.environment import fingerprint

PLUGIN = """
import moeguard as mg
from moeguard.mutants.broken_tactics import TacticWrongTile

mg.register(TacticWrongTile())
"""
MUTANT = "mutant_tactic_wrong_tile"


class Recorded(NamedTuple):
    """A run directory and the allowlist that records it."""

    run: Path
    allowlist: Path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("gate")
    (folder / "mutant.py").write_text(PLUGIN)
    found = Recorded(folder / "run", folder / "moeguard-allowlist.toml")
    done = call("run", "--plugin", folder / "mutant.py", "--backend", "torch_reference", "--backend", MUTANT, *SMOKE,
                "--max-cases", 70, "--json", "--out", found.run)
    assert done.code == 1 and {one["kind"] for one in done.data["findings"]} == {"bad_tactic"}
    updated = call("allow", "update", "--allowlist", found.allowlist, "--evidence", found.run, "--json")
    assert updated.code == 0
    assert {one["cell"]["backend"]: one["after"] for one in updated.data["changes"]} == {
        MUTANT: [], "torch_reference": ["O1", "O2", "O3"]}
    return found


def test_the_healthy_backend_is_allowed(recorded: Recorded) -> None:
    done = call("gate", "--allowlist", recorded.allowlist, "--evidence", recorded.run, "--level", "O2",
                "--cell", "torch_reference/bf16", "--json")
    assert (done.code, done.data["allowed"]) == (0, True)
    (cell,) = done.data["cells"]
    assert (cell["cell"]["backend"], cell["decision"], cell["failed_requirements"]) == ("torch_reference", "on", [])


def test_the_broken_one_is_refused_and_its_tactic_named(recorded: Recorded) -> None:
    done = call("gate", "--allowlist", recorded.allowlist, "--evidence", recorded.run, "--flip", "autotune=on", "--json")
    assert (done.code, done.data["allowed"]) == (1, False)
    broken = next(one for one in done.data["cells"] if one["cell"]["backend"] == MUTANT)
    assert broken["decision"] == "off"
    sentences = {one["name"]: one["sentence"] for one in broken["failed_requirements"]}
    assert sentences["open_findings"] == "open findings: bad_tactic of tactic halves"
    said = call("gate", "--allowlist", recorded.allowlist, "--evidence", recorded.run)
    assert said.code == 1 and "tactic halves" in said.out
    blocked = json.loads(call("allow", "export", "--allowlist", recorded.allowlist, "--format", "flashinfer-blocklist").out)
    assert [(row["backend"], row["tactics"]) for row in blocked["blocked"]] == [(MUTANT, ["halves"])]


def test_a_program_can_ask(recorded: Recorded) -> None:
    here = fingerprint("cpu")
    known = mg.Allowlist.load(recorded.allowlist)
    assert known.decide("torch_reference", "bf16", "O2", here).allowed
    assert not known.decide(MUTANT, "bf16", "O2", here).allowed
    assert not known.decide("torch_reference", "fp16", "O2", here).allowed
    changed = here | {"packages": here["packages"] | {"torch": "1.0"}}
    assert [one.name for one in known.decide("torch_reference", "bf16", "O2", changed).failed] == ["versions"]


def test_any_changed_byte_is_exit_code_3(recorded: Recorded, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded.run, tmp_path / "run"))
    draw = random.Random(0)
    for file in (run / "manifest.json", run / "journal.jsonl", next((run / "cases").iterdir())):
        data = file.read_bytes()
        for _ in range(4):
            place, value = draw.randrange(len(data)), draw.randrange(1, 256)
            file.write_bytes(data[:place] + bytes([data[place] ^ value]) + data[place + 1:])
            done = call("gate", "--allowlist", recorded.allowlist, "--evidence", run, "--json")
            assert (done.code, done.data["allowed"]) == (3, False), (file.name, place, value)
        file.write_bytes(data)
    assert call("gate", "--allowlist", recorded.allowlist, "--evidence", run, "--json").code == 1


def test_derived_files_do_not_count(recorded: Recorded, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded.run, tmp_path / "run"))
    assert call("report", run, "--json").code == 1
    (run / "summary.md").write_text("other")
    done = call("gate", "--allowlist", recorded.allowlist, "--evidence", run, "--cell", "torch_reference/bf16", "--json")
    assert done.code == 0
