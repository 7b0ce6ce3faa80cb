"""``moeguard replay`` and ``moeguard report``: a stored case, and a stored run, again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

from commandline import Called, Run

from moeguard.core.case import Case

Cli = Callable[..., Called]
CASE = Case.model_validate({"shape": dict(num_tokens=3, hidden_size=16, intermediate_size=16, num_experts=4, top_k=2)})


def test_replay_of_a_healthy_backend_is_clean(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "case.json").write_text(CASE.to_json())
    done = cli("replay", tmp_path / "case.json", "--backend", "torch_reference", "--device", "cpu", "--repeat", 2, "--json",
               "--out", tmp_path / "run")
    assert (done.code, done.err) == (0, "")
    assert (done.data["verdict"], done.data["findings"]) == ("clean", [])
    assert done.data["executions"] > 10
    assert (tmp_path / "run" / "report.html").exists()


def test_replay_of_one_tactic(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "case.json").write_text(CASE.to_json())
    done = cli("replay", tmp_path / "case.json", "--backend", "torch_reference", "--tactic", "split", "--device", "cpu",
               "--json", "--out", tmp_path / "run")
    assert done.code == 0
    assert done.data["executions"] == 2


def test_replay_of_a_tactic_that_is_not_offered_names_those_that_are(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "case.json").write_text(CASE.to_json())
    done = cli("replay", tmp_path / "case.json", "--backend", "torch_reference", "--tactic", "fastest", "--device", "cpu",
               "--out", tmp_path / "run")
    assert done.code == 3
    assert "tactic fastest is not offered for this case; offered: segments, padded, split" in done.out


def test_replay_of_what_the_backend_does_not_support_is_inconclusive(healthy_plugin: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "case.json").write_text(CASE.with_(recipe="fp16").to_json())
    done = cli("replay", tmp_path / "case.json", "--backend", "loop", "--plugin", healthy_plugin, "--device", "cpu", "--json",
               "--out", tmp_path / "run")
    assert (done.code, done.data["verdict"], done.data["executions"]) == (3, "inconclusive", 0)


def test_report_writes_the_derived_files_again(broken_copy: Path, broken_run: Run, cli: Cli) -> None:
    names = ["findings.jsonl", "summary.md", "junit.xml", "report.html", "executions.parquet"]
    for name in names:
        (broken_copy / name).unlink()
    done = cli("report", broken_copy, "--json")
    assert done.code == 1
    assert json.dumps(done.data) == json.dumps(broken_run.data).replace(str(broken_run.path), str(broken_copy))
    assert all((broken_copy / name).stat().st_size for name in names)
    for name in ("summary.md", "junit.xml", "findings.jsonl"):
        wanted = (broken_run.path / name).read_text().replace(str(broken_run.path), str(broken_copy))
        assert (broken_copy / name).read_text() == wanted


def test_report_for_people(clean_run: Run, cli: Cli) -> None:
    done = cli("report", clean_run.path)
    assert done.code == 0
    assert "clean" in done.out and "report.html" in done.out


def test_replay_commands_are_commands(broken_run: Run, broken_plugin: Path) -> None:
    for finding in broken_run.data["findings"]:
        program, command, case, *rest = shlex.split(finding["replay"])
        assert (program, command) == ("moeguard", "replay")
        assert Case.load(case) == Case.model_validate(finding["case"])
        assert rest == ["--backend", "holey", "--plugin", str(broken_plugin)]


def test_a_case_that_needs_another_one_before_it(tmp_path: Path, cli: Callable[..., Called], clean_registry: None) -> None:
    """H = 24 corrupts what a case with another H dies of: the report says so, and its command shows it again."""
    plugin = tmp_path / "victim.py"
    plugin.write_text("import os\nfrom moeguard.backends.torch_reference import TorchReference\n\n\n"
                      "class Victim(TorchReference):\n    name = \"victim\"\n    broken = False\n\n"
                      "    def prepare(self, weights, case):\n"
                      "        if self.broken and case.shape.hidden_size != 24:\n            os.abort()\n"
                      "        self.broken = self.broken or case.shape.hidden_size == 24\n"
                      "        return super().prepare(weights, case)\n")
    first = Case.model_validate({"shape": dict(num_tokens=3, hidden_size=24, intermediate_size=16, num_experts=4, top_k=2)})
    second = first.with_(shape={"hidden_size": 16})
    files = []
    for case in (first, second):
        files.append(tmp_path / f"{case.fingerprint}.json")
        files[-1].write_text(case.to_json())
    done = cli("replay", files[1], "--after", files[0], "--backend", "victim", "--plugin", plugin, "--device", "cpu", "--json",
               "--out", tmp_path / "run")
    (finding,) = done.data["findings"]
    assert (done.code, finding["kind"], finding["reproduced"]) == (1, "crash", True)
    assert f"but only after case {first.fingerprint} in the same process" in finding["sentence"]
    assert f"--after {tmp_path}/run/cases/{first.fingerprint}.json" in finding["replay"]
    assert {file.name for file in (tmp_path / "run" / "cases").iterdir()} == {file.name for file in files}
    summary = (tmp_path / "run" / "summary.md").read_text()
    assert f"guilty case: {first.fingerprint}; cases that must run before it: {first.fingerprint} of victim" in summary
