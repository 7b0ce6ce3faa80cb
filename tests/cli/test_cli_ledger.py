"""The ledger of known findings on the command line: what is known, what is new, and what no longer occurs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import SMOKE, Called, Run, call
from ledger_files import ENTRY, ledger

from moeguard.core.case import Case
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import profile

Cli = Callable[..., Called]
#: An entry that covers the defect of the plug-in up to 8 tokens; it occurs at every odd number.
PART = {"condition": [{"field": "shape.num_tokens", "at_most": 8}]}
DEADLY = {"id": "two-experts", "backend": "deadly", "kinds": ["crash"], "crash_class": True,
          "condition": [{"field": "shape.top_k", "equals": 2}], "reason": "Two experts a token end the process."}


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that covers the whole defect."""
    path = tmp_path_factory.mktemp("ledger") / "known.toml"
    path.write_text(ledger())
    return path


@pytest.fixture(scope="session")
def known_run(broken_plugin: Path, known: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A campaign on the backend with a defect that is known."""
    path = tmp_path_factory.mktemp("known") / "run"
    return Run(call("run", "--plugin", broken_plugin, *SMOKE, "--max-cases", 30, "--ledger", known, "--json", "--out", path),
               path)


@pytest.fixture(scope="session")
def deadly_plugin(broken_plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backend that ends the process when a token has two experts."""
    source = broken_plugin.read_text().replace('"holey"', '"deadly"').replace("out.shape[1] - out.shape[0] % 2", "out.shape[1]")
    source = source.replace("import torch\n", "import os\nimport torch\n", 1).replace(
        "        first, gates", "        if batch.topk_ids.shape[1] == 2:\n            os._exit(3)\n        first, gates")
    path = tmp_path_factory.mktemp("deadly") / "deadly.py"
    path.write_text(source)
    return path


def seed_with_two_experts() -> int:
    """A seed among whose first eight cases is exactly one that ends the process of the deadly backend."""
    def deadly(case: Case) -> bool:
        return case.shape.top_k == 2 and case.shape.num_tokens > 0 and (case.activation.kind, case.activation_format) == (
            "swiglu", "standard") and not case.weights.bias

    return next(seed for seed in range(200)
                if [deadly(case) for case in draw_round(profile("smoke"), ("bf16",), seed, 0)[:8]].count(True) == 1)


def run(plugin: Path, text: str, folder: Path, *more: object) -> Called:
    (folder / "known.toml").write_text(text)
    return call("run", "--plugin", plugin, *SMOKE, "--max-cases", 30, "--ledger", folder / "known.toml", "--json",
                "--out", folder / "run", *more)


def test_a_known_finding_does_not_fail_a_run(known_run: Run, known: Path) -> None:
    assert (known_run.called.code, known_run.data["verdict"]) == (0, "clean")
    (finding,) = known_run.data["findings"]
    assert finding["known"] is True
    assert finding["ledger"] == {"id": "last-column", "reference": "holey#1", "expires": "2999-12-31", "absence": None,
                                 "reason": ENTRY["reason"]}
    (entry,) = known_run.data["ledger"]["entries"]
    assert (entry["id"], entry["findings"], known_run.data["ledger"]["source"]) == ("last-column", 1, str(known))
    manifest = json.loads((known_run.path / "manifest.json").read_text())
    assert (manifest["options"]["ledger"], manifest["options"]["strict"]) == (str(known), False)
    assert manifest["ledger"]["sha256"] == known_run.data["ledger"]["sha256"]


def test_every_report_names_the_entry(known_run: Run, cli: Cli) -> None:
    for name in ("summary.md", "report.html", "junit.xml"):
        text = (known_run.path / name).read_text()
        assert all(word in text for word in ("last-column", "holey#1", "2999-12-31")), name
    junit = (known_run.path / "junit.xml").read_text()
    assert 'failures="0"' in junit and 'type="moeguard.known"' in junit
    shown = cli("report", known_run.path)
    assert shown.code == 0
    assert "(known)" in shown.out and "Known as last-column (holey#1, until 2999-12-31)" in shown.out


def test_report_and_resume_need_no_ledger_file(known_run: Run, tmp_path: Path, cli: Cli) -> None:
    """The manifest keeps what the ledger said, whatever becomes of the file."""
    copy = Path(shutil.copytree(known_run.path, tmp_path / "copy"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["options"]["ledger"] = str(tmp_path / "gone.toml")
    (copy / "manifest.json").write_text(json.dumps(manifest))
    lines = (copy / "journal.jsonl").read_text().splitlines(keepends=True)
    (copy / "journal.jsonl").write_text("".join(lines[: len(lines) // 2]))
    resumed = cli("run", "--resume", copy, "--json")
    assert resumed.code == 0
    assert resumed.data["findings"][0]["known"] is True
    names = ("findings.jsonl", "summary.md", "junit.xml", "report.html")
    before = {name: (copy / name).read_bytes() for name in names}
    assert cli("report", copy).code == 0
    assert {name: (copy / name).read_bytes() for name in names} == before


def test_a_strict_run_fails(broken_plugin: Path, tmp_path: Path) -> None:
    done = run(broken_plugin, ledger(), tmp_path, "--strict")
    assert (done.code, done.data["verdict"]) == (1, "findings")
    (finding,) = done.data["findings"]
    assert (finding["known"], finding["reproduced"], finding["case"]["shape"]["num_tokens"]) == (True, True, 1)
    assert call("report", tmp_path / "run").code == 1


@pytest.mark.parametrize("strict", [False, True])
def test_the_same_kind_elsewhere_is_new(strict: bool, broken_plugin: Path, tmp_path: Path) -> None:
    """Each shrinks to its own minimum, on its own side of the entry's condition."""
    done = run(broken_plugin, ledger(PART), tmp_path, *(["--strict"] if strict else []))
    assert done.code == 1
    new, old = done.data["findings"]
    assert (new["known"], old["known"], new["kind"]) == (False, True, old["kind"])
    assert new["fingerprint"] != old["fingerprint"]
    assert (new["case"]["shape"]["num_tokens"], new["reproduced"]) == (9, True)
    assert new["case"]["shape"]["hidden_size"] == 8
    tokens = old["case"]["shape"]["num_tokens"]
    assert tokens == 1 if strict else tokens <= 8


@pytest.mark.parametrize(("fields", "word"), [
    ({"expires": "2020-01-01"}, "expired on 2020-01-01"), ({"versions": "<1"}, "is outside of <1")])
def test_an_entry_that_does_not_count_says_so(fields: dict[str, Any], word: str, broken_plugin: Path, tmp_path: Path) -> None:
    done = run(broken_plugin, ledger(fields), tmp_path)
    assert done.code == 1
    (finding,) = done.data["findings"]
    assert finding["known"] is False and word in finding["ledger"]["absence"]
    assert word in (tmp_path / "run" / "summary.md").read_text().replace("\\", "")
    assert "Not known any more: last-column" in " ".join(call("report", tmp_path / "run").out.split())


def test_a_case_that_is_known_to_kill_is_not_launched(deadly_plugin: Path, tmp_path: Path) -> None:
    done = run(deadly_plugin, ledger(DEADLY), tmp_path)
    assert (done.code, done.data["findings"]) == (0, [])
    notes = [note for note in done.data["not_verified"] if note["what"] == "known crash"]
    assert len(notes) == 1 and "two-experts (holey#1)" in notes[0]["reason"]
    assert done.data["executions"] > 0


def test_a_strict_run_launches_it(deadly_plugin: Path, tmp_path: Path) -> None:
    done = run(deadly_plugin, ledger(DEADLY), tmp_path, "--strict", "--max-cases", 8, "--seed", seed_with_two_experts())
    assert done.code == 1
    assert {finding["kind"] for finding in done.data["findings"]} == {"crash"}
    assert all(finding["known"] for finding in done.data["findings"])


def test_replay_of_a_case_marks_and_launches(deadly_plugin: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "known.toml").write_text(ledger(DEADLY))
    (tmp_path / "case.json").write_text(json.dumps(ENTRY["case"]))
    done = cli("replay", tmp_path / "case.json", "--backend", "deadly", "--plugin", deadly_plugin, "--device", "cpu", "--json",
               "--ledger", tmp_path / "known.toml", "--out", tmp_path / "run")
    assert [finding["known"] for finding in done.data["findings"]] == [True]


def test_sweep_marks_too(broken_plugin: Path, known: Path, tmp_path: Path, cli: Cli) -> None:
    words = ("sweep", "--backend", "holey", "--recipe", "bf16", "--tokens", 3, "--plugin", broken_plugin, "--device", "cpu",
             "--ledger", known, "--json")
    assert [one["known"] for one in cli(*words, "--out", tmp_path / "a").data["findings"]] == [True]
    assert cli(*words, "--strict", "--out", tmp_path / "b").code == 1


def test_replay_of_the_ledger(broken_plugin: Path, healthy_plugin: Path, deadly_plugin: Path, tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "known.toml"
    path.write_text(ledger({}, {"id": "gone", "backend": "loop"}, {"id": "nobody", "backend": "nobody"}, DEADLY,
                           {"id": "old", "expires": "2020-01-01"},
                           {"id": "refused", "recipes": ["fp16"], "case": ENTRY["case"] | {"recipe": "fp16"}}))
    plugins = [word for plugin in (broken_plugin, healthy_plugin, deadly_plugin) for word in ("--plugin", plugin)]
    done = cli("replay", "--ledger", path, *plugins, "--device", "cpu", "--repeat", 2, "--json")
    assert (done.code, done.err, done.data["verdict"]) == (1, "", "findings")
    assert [(entry["id"], entry["status"]) for entry in done.data["entries"]] == [
        ("last-column", "occurred"), ("gone", "no_longer_occurs"), ("nobody", "not_applicable"), ("two-experts", "occurred"),
        ("old", "not_applicable"), ("refused", "not_applicable")]
    assert not list(Path.cwd().glob("reports/*-replay-*"))
    for backend, code in (("holey", 0), ("loop", 1), ("nobody", 3)):
        assert cli("replay", "--ledger", path, *plugins, "--device", "cpu", "--backend", backend).code == code, backend


def test_replay_of_the_packaged_ledger_where_nothing_applies(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from moeguard.ledger import entry

    def absent(name: str) -> str:
        raise entry.PackageNotFoundError(name)

    monkeypatch.setattr(entry, "version", absent)
    monkeypatch.setenv("COLUMNS", "200")
    done = cli("replay", "--ledger", "--json", "--device", "cpu")
    assert (done.code, done.data["verdict"], done.data["ledger"]) == (3, "inconclusive", "packaged")
    assert {one["status"] for one in done.data["entries"]} == {"not_applicable"}
    shown = cli("replay", "--ledger")
    assert shown.code == 3 and "is not installed" in " ".join(shown.out.split())
