"""``moeguard sweep``: every tactic is forced, witnessed, judged and timed, whatever the others do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import Called, Run, call

Cli = Callable[..., Called]

#: Twelve healthy tactics, and one of each defect among them.
PLUGIN = '''
import os, time
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference

GOOD = tuple(f"good{number}" for number in range(12))
BAD = ("raises", "ends", "hangs", "wrong", "lies", "breaks_later")

class Many(TorchReference):
    name = "many"
    calls = 0
    def tactics(self, prepared, batch):
        return (*GOOD[:6], *BAD, *GOOD[6:]) if batch.x.data.shape[0] < 64 else GOOD
    def tune(self, prepared, batch):
        return None
    def run(self, prepared, batch, out, *, tactic=None, workspace=None):
        if tactic == "raises":
            raise RuntimeError("no kernel image")
        if tactic == "ends":
            os._exit(7)
        if tactic == "hangs":
            time.sleep(600)
        if tactic == "breaks_later":
            self.calls += 1
            if self.calls > 1:
                os.abort()
        super().run(prepared, batch, out)
        if tactic == "wrong":
            out[:, :4] *= 3
        self._executed = "segments" if tactic == "lies" else tactic

class Plain(TorchReference):
    name = "plain"
    def tactics(self, prepared, batch):
        return ()

class Cannot(TorchReference):
    name = "cannot"
    def availability(self):
        return mg.Availability.no("needs a GPU of another kind")

class DiesAtStart(TorchReference):
    name = "dies"
    def prepare(self, weights, case):
        os._exit(9)

for kind in (Many, Plain, Cannot, DiesAtStart):
    mg.register(kind())
'''
SMALL = ("--hidden", 64, "--intermediate", 64, "--experts", 4, "--top-k", 2, "--device", "cpu", "--recipe", "bf16")


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "many.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture(scope="module")
def swept(plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("swept") / "run"
    return Run(call("sweep", "--backend", "many", "--plugin", plugin, *SMALL, "--tokens", "5,64", "--timeout", "2s", "--json",
                    "--out", path), path)


def rows(data: dict[str, Any], tokens: int) -> dict[str | None, dict[str, Any]]:
    return {row["tactic"]: row for row in data["tactics"] if row["tokens"] == tokens}


def test_every_tactic_is_forced_although_some_end_the_process(swept: Run) -> None:
    assert (swept.called.code, swept.called.err) == (1, "")
    few = rows(swept.data, 5)
    assert list(few) == [None, *(f"good{n}" for n in range(6)), "raises", "ends", "hangs", "wrong", "lies",
                         "breaks_later", *(f"good{n}" for n in range(6, 12))]
    for name in (None, *(f"good{n}" for n in range(12))):
        assert (few[name]["verdict"], few[name]["kinds"]) == ("ok", []), name
        assert few[name]["executions"] >= 1
        assert few[name]["seconds"] > 0 and few[name]["runs"] == 5
    assert {row["layer"] for row in swept.data["tactics"]} == {"H64I64E4K2"}
    assert list(rows(swept.data, 64)) == [None, *(f"good{n}" for n in range(12))]


@pytest.mark.parametrize(("tactic", "kind", "witnessed"), [
    ("raises", "crash", None), ("ends", "crash", None), ("hangs", "hang", None), ("wrong", "bad_tactic", True),
    ("lies", "tactic_not_executed", False), ("breaks_later", "crash", None)])
def test_what_a_bad_tactic_does_is_a_finding(tactic: str, kind: str, witnessed: bool | None, swept: Run) -> None:
    row = rows(swept.data, 5)[tactic]
    assert (row["verdict"], row["kinds"], row["witnessed"]) == ("findings", [kind], witnessed)
    assert [one["kind"] for one in swept.data["findings"] if one["tactic"] == tactic] == [kind]


def test_a_right_tactic_is_witnessed(swept: Run) -> None:
    assert rows(swept.data, 5)["good11"]["witnessed"] is True


def test_the_json_is_that_of_a_run_with_the_tactics_beside(swept: Run) -> None:
    assert list(swept.data) == ["verdict", "run_dir", "executions", "cases", "seconds", "findings", "cells", "not_verified",
                                "tactics"]
    assert (swept.data["verdict"], swept.data["cases"]) == ("findings", 2)
    events = [json.loads(line) for line in (swept.path / "journal.jsonl").read_text().splitlines()]
    executed = [event for event in events if event["event"] == "executed"]
    assert swept.data["executions"] == len(executed) == sum(row["executions"] for row in swept.data["tactics"])
    assert sum(event["event"] == "scenario_finished" for event in events) == 2
    numbers = [event["number"] for event in executed if event["scenario"] == 0]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_reports_hold_the_table(swept: Run) -> None:
    assert "| breaks_later | crash |" in (swept.path / "summary.md").read_text()
    assert "good11" in (swept.path / "report.html").read_text()


def test_report_prints_the_same_again(swept: Run, cli: Cli) -> None:
    again = cli("report", swept.path, "--json")
    assert again.code == 1
    assert again.data == swept.data


def test_people_get_a_table_of_tactics(swept: Run, cli: Cli) -> None:
    done = cli("run", "--resume", swept.path)
    assert done.code == 1
    lines = done.out[done.out.index("tactic "):].splitlines()
    table = {line.split()[0]: line for line in lines[: lines.index("")]}
    assert "T = 5" in table["tactic"] and "T = 64" in table["tactic"]
    assert "bad_tactic" in table["wrong"] and table["wrong"].rstrip().endswith("-")
    assert table["good0"].count("ok ") == 2
    assert done.out.count(" *") == 2


def test_a_finding_is_replayed_by_its_command(swept: Run, plugin: Path, tmp_path: Path, cli: Cli) -> None:
    (finding,) = [one for one in swept.data["findings"] if one["tactic"] == "wrong"]
    assert "--tactic wrong" in finding["replay"]
    case = finding["replay"].split()[2]
    done = cli("replay", case, "--backend", "many", "--tactic", "wrong", "--plugin", plugin, "--device", "cpu", "--json",
               "--out", tmp_path / "again")
    assert [one["kind"] for one in done.data["findings"]] == ["bad_tactic"]


def test_a_clean_sweep_with_repeats(tmp_path: Path, cli: Cli) -> None:
    done = cli("sweep", "--backend", "torch_reference", *SMALL, "--tokens", "3", "--repeat", 3, "--json",
               "--out", tmp_path / "run")
    assert (done.code, done.data["verdict"], done.data["findings"]) == (0, "clean", [])
    assert {row["tactic"]: row["executions"] for row in done.data["tactics"]} == {
        None: 3, "segments": 3, "padded": 3, "split": 3}


def test_a_backend_without_tactics_is_inconclusive(plugin: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("sweep", "--backend", "plain", "--plugin", plugin, *SMALL, "--tokens", "3", "--json", "--out", tmp_path / "run")
    assert (done.code, done.data["verdict"]) == (3, "inconclusive")
    assert [row["tactic"] for row in done.data["tactics"]] == [None]
    assert "the backend offers none" in [note["reason"] for note in done.data["not_verified"]]


def test_a_backend_that_cannot_run_here_is_inconclusive(plugin: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("sweep", "--backend", "cannot", "--plugin", plugin, *SMALL, "--tokens", "3", "--json", "--out", tmp_path / "run")
    assert (done.code, done.data["verdict"], done.data["tactics"]) == (3, "inconclusive", [])
    assert done.data["not_verified"][0]["reason"] == "needs a GPU of another kind"


def test_a_backend_that_ends_the_process_before_any_tactic(plugin: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("sweep", "--backend", "dies", "--plugin", plugin, *SMALL, "--tokens", "3,4", "--json", "--out", tmp_path / "run")
    assert done.code == 1
    assert [(one["kind"], one["tactic"]) for one in done.data["findings"]] == [("crash", None)]


def test_a_layer_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli) -> None:
    from moeguard.fuzz import boundaries

    monkeypatch.setattr(boundaries, "LAYERS", (boundaries.Layer("Tiny-1B", 32, 48, 4, 2),))
    done = cli("sweep", "--backend", "torch_reference", "--recipe", "fp16", "--layer", "tiny-1b", "--tokens", "2",
               "--device", "cpu", "--activation", "geglu", "--json", "--out", tmp_path / "run")
    assert done.code == 0
    case = json.loads((tmp_path / "run" / "manifest.json").read_text())["options"]["cases"][0]
    assert case["shape"] == {"num_tokens": 2, "hidden_size": 32, "intermediate_size": 48, "num_experts": 4, "top_k": 2}
    assert (case["activation"]["kind"], case["recipe"]) == ("geglu", "fp16")
    assert {row["layer"] for row in done.data["tactics"]} == {"tiny-1b"}


def test_several_layers_in_one_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli) -> None:
    from moeguard.fuzz import boundaries

    monkeypatch.setattr(boundaries, "LAYERS", (boundaries.Layer("Tiny-1B", 32, 48, 4, 2),
                                               boundaries.Layer("Wee-2B", 64, 48, 8, 2)))
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "run"
    done = cli("sweep", "--backend", "torch_reference", "--recipe", "bf16", "--layer", "Tiny-1B", "--layer", "Wee-2B/tp2",
               "--tokens", "3,2", "--repeat", 2, "--device", "cpu", "--json", "--out", path)
    assert (done.code, done.data["cases"]) == (0, 8)
    assert [(row["layer"], row["tokens"], row["tactic"], row["executions"]) for row in done.data["tactics"]] == [
        (layer, tokens, tactic, 2) for layer in ("Tiny-1B", "Wee-2B/tp2") for tokens in (2, 3)
        for tactic in (None, "segments", "padded", "split")]
    options = json.loads((path / "manifest.json").read_text())["options"]
    assert options["labels"] == ["Tiny-1B", "Tiny-1B", "Wee-2B/tp2", "Wee-2B/tp2"]
    assert [case["parallel"]["tp_size"] for case in options["cases"]] == [1, 1, 2, 2]
    again = cli("report", path, "--json")
    assert (again.code, again.data) == (0, done.data)
    header = next(line for line in cli("report", path).out.splitlines() if line.startswith("tactic "))
    assert [name for name in header.split("  ") if name] == [
        "tactic", "Tiny-1B T = 2", "Tiny-1B T = 3", "Wee-2B/tp2 T = 2", "Wee-2B/tp2 T = 3"]
    assert "| Wee-2B/tp2 T = 3 |" in (path / "summary.md").read_text()


def test_what_tuning_chooses_is_swept_too(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "pairs.py"
    file.write_text('''
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference


class Pairs(TorchReference):
    name = "pairs"

    def tactics(self, prepared, batch):
        return ("segments",)

    def tune(self, prepared, batch):
        return "split"


mg.register(Pairs())
''')
    done = cli("sweep", "--backend", "pairs", "--plugin", file, *SMALL, "--tokens", "3", "--json", "--out", tmp_path / "run")
    assert (done.code, [row["tactic"] for row in done.data["tactics"]]) == (0, [None, "segments", "split"])
