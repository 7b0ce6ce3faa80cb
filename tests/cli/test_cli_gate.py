"""``gate`` and ``allow`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import call
from gate_entries import entry, toml
from gate_runs import scenarios, write

CUTLASS = "flashinfer_cutlass"
BAD = {
    "syntax.toml": "schema =", "schema.toml": toml(schema=2), "field.toml": toml(entry(colour="red")),
    "on.toml": toml(entry(autotune="maybe")), "good.toml": toml(entry()), "twice.toml": toml(entry(), entry()),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gate") / "run", scenarios(340, backend=CUTLASS))


@pytest.fixture
def allowlist(run: Path, tmp_path: Path) -> Path:
    file = tmp_path / "moeguard-allowlist.toml"
    done = call("allow", "update", "--allowlist", file, "--evidence", run, "--expires", "2999-12-31", "--reason", "why")
    assert (done.code, done.out) == (0, "flashinfer_cutlass/bf16/sm90: O1, O2, O3 (new): why\n")
    return file


def test_a_gate_that_says_yes(run: Path, allowlist: Path, tmp_path: Path) -> None:
    done = call("gate", "--allowlist", allowlist, "--evidence", run, "--markdown", tmp_path / "out.md", "--json")
    assert done.code == 0
    assert {"allowed", "cells"} <= set(done.data) and done.data["cells"][0]["decision"] == "on"
    assert "| flashinfer_cutlass | bf16 | sm90 | on | - | - | not measured |" in (tmp_path / "out.md").read_text()
    assert "Allowed." in call("gate", "--allowlist", allowlist, "--evidence", run).out


def test_several_run_directories_behind_one_option(run: Path, allowlist: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "more", scenarios(5, backend=CUTLASS), run_id="run-2")
    assert call("allow", "update", "--allowlist", allowlist, "--evidence", run, more, "--json").code == 0
    assert call("gate", "--allowlist", allowlist, "--evidence", run, more, "--json").code == 0
    assert call("gate", "--allowlist", allowlist, "--evidence", run, "--evidence", more, "--json").code == 0
    assert call("gate", "--allowlist", allowlist, "--evidence", run, "--json").code == 3


def test_a_gate_that_says_no(run: Path, allowlist: Path) -> None:
    done = call("gate", "--allowlist", allowlist, "--evidence", run, "--level", "O0")
    assert done.code == 1 and "Not allowed" in done.out


def test_a_policy_of_ones_own(run: Path, allowlist: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("schema = 1\n[level.O0]\nnever = true\n" + "".join(
        f"[level.{level}]\nmin_executions = 5000\n" for level in ("O1", "O2", "O3")))
    done = call("gate", "--allowlist", allowlist, "--evidence", run, "--policy", policy, "--json")
    assert done.code == 1
    assert [one["name"] for one in done.data["cells"][0]["failed_requirements"]] == ["executions"]


def test_no_evidence_is_inconclusive(run: Path, allowlist: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = call("gate", "--allowlist", allowlist, "--evidence", tmp_path / "empty", "--json")
    assert (done.code, done.data["allowed"]) == (3, False)
    assert "manifest.json is missing" in done.data["stale"][0]["reason"]
    nothing = write(tmp_path / "nothing", [])
    assert call("gate", "--allowlist", allowlist, "--evidence", nothing, "--json").code == 3
    assert call("gate", "--allowlist", allowlist, "--evidence", run, "--cell", "other/bf16", "--json").code == 3
    before = allowlist.read_text()
    for folder in (tmp_path / "empty", nothing):
        assert call("allow", "update", "--allowlist", allowlist, "--evidence", folder).code == 3
    assert allowlist.read_text() == before


def test_evidence_from_the_future_is_inconclusive(run: Path, allowlist: Path, tmp_path: Path) -> None:
    late = write(tmp_path / "late", scenarios(5, backend=CUTLASS), run_id="run-2", started="2999-01-01T00:00:00+00:00")
    before = allowlist.read_text()
    done = call("allow", "update", "--allowlist", allowlist, "--evidence", late)
    assert done.code == 3 and "but the run was started on 2999-01-01" in done.err and allowlist.read_text() == before
    done = call("gate", "--allowlist", allowlist, "--evidence", run, late, "--json")
    assert done.code == 3 and any("but the run was started on 2999-01-01" in one["reason"] for one in done.data["stale"])


def test_an_entry_that_has_expired_is_no(run: Path, allowlist: Path) -> None:
    allowlist.write_text(allowlist.read_text().replace("2999-12-31", "2026-05-31"))
    done = call("gate", "--allowlist", allowlist, "--evidence", run, "--json")
    assert done.code == 1 and [one["name"] for one in done.data["cells"][0]["failed_requirements"]] == ["expires"]


def test_the_list(allowlist: Path) -> None:
    assert "flashinfer_cutlass" in call("allow", "list", "--allowlist", allowlist).out
    (row,) = call("allow", "list", "--allowlist", allowlist, "--json").data["cells"]
    assert row["levels"] == {"O0": "off", "O1": "on", "O2": "on", "O3": "on"}


def test_the_explanation(allowlist: Path) -> None:
    done = call("allow", "explain", "flashinfer_cutlass/bf16", "--allowlist", allowlist)
    assert done.code == 0 and "flashinfer_cutlass/bf16/sm90 O0: off\n  level:" in done.out
    assert len(call("allow", "explain", "flashinfer_cutlass/bf16", "--allowlist", allowlist, "--json").data["cells"]) == 4
    unknown = call("allow", "explain", "other/bf16", "--allowlist", allowlist)
    assert unknown.code == 1 and "off at every level" in unknown.out


def test_the_exports(allowlist: Path) -> None:
    done = call("allow", "export", "--allowlist", allowlist, "--format", "vllm-cli")
    assert (done.code, done.out) == (0, "--enable-flashinfer-autotune --moe-backend flashinfer_cutlass\n")
    assert done.err == ("note: flashinfer_cutlass with bf16: decided for sm90 with flashinfer 0.7.4, cuda 12.9, driver 575.57, "
                        "torch 2.13.0; this machine has no GPU\n")
    off = call("allow", "export", "--allowlist", allowlist, "--format", "vllm-cli", "--cell", "other/bf16")
    assert (off.code, off.out) == (0, "--no-enable-flashinfer-autotune\n") and "not in the allowlist" in off.err
    data = call("allow", "export", "--allowlist", allowlist, "--format", "vllm-json", "--json").data
    assert (data["autotune"], json.loads(data["text"])["moe_backend"]) == ("on", "flashinfer_cutlass")


@pytest.mark.parametrize(("words", "message"), [
    ("gate --allowlist none.toml --evidence run", "cannot read the allowlist"),
    ("gate --allowlist good.toml --evidence none", "--evidence: none is no folder"),
    ("gate --allowlist good.toml", "--evidence"),
    ("gate --allowlist syntax.toml --evidence run", "not valid TOML"),
    ("gate --allowlist schema.toml --evidence run", "schema: 2; allowed: 1"),
    ("gate --allowlist field.toml --evidence run", "colour: unknown field; allowed: backend"),
    ("gate --allowlist on.toml --evidence run", "autotune: input should be 'on' or 'off'"),
    ("gate --allowlist twice.toml --evidence run", "twice"),
    ("gate --allowlist good.toml --evidence run --level O4", "--level: unknown value 'O4'; allowed: O0"),
    ("gate --allowlist good.toml --evidence run --flip on", "--flip: 'on'; allowed: autotune=on, autotune=off"),
    ("gate --allowlist good.toml --evidence run --policy none.toml", "cannot read the policy"),
    ("gate --allowlist good.toml --evidence run --policy good.toml", "cell: unknown field"),
    ("gate --allowlist good.toml --evidence run --cell mine", "cell: 'mine'; allowed: BACKEND/RECIPE"),
    ("gate --allowlist good.toml --evidence run --markdown none/out.md", "--markdown: none/out.md cannot be written"),
    ("allow update --allowlist syntax.toml --evidence run", "not valid TOML"),
    ("allow update --allowlist new.toml --evidence run --expires soon", "--expires: 'soon'; allowed: a day as YYYY-MM-DD"),
    ("allow update --allowlist none/new.toml --evidence run", "--allowlist: none/new.toml cannot be written"),
    ("allow export --allowlist good.toml --format vllm", "--format: unknown value 'vllm'; allowed: vllm-cli"),
    ("allow export --allowlist good.toml", "--format"),
    ("allow explain mine --allowlist good.toml", "cell: 'mine'; allowed: BACKEND/RECIPE"),
    ("allow list --allowlist none.toml", "cannot read the allowlist"),
])
def test_bad_input_is_one_line(words: str, message: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in BAD.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "run").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    done = call(*words.split(), "--json")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    assert message in done.err


def test_markdown_does_not_take_the_place_of_the_allowlist(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("schema = 1\n")
    (tmp_path / "run").mkdir()
    done = call("gate", "--allowlist", file, "--evidence", tmp_path / "run", "--markdown", file)
    assert (done.code, file.read_text()) == (2, "schema = 1\n") and "--markdown" in done.err


def test_an_entry_that_is_past_from_the_start_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    done = call("allow", "update", "--allowlist", tmp_path / "a.toml", "--evidence", tmp_path / "run", "--expires", "2020-01-01")
    assert done.code == 2 and "--expires: 2020-01-01 is past; allowed: " in done.err
    assert not (tmp_path / "a.toml").exists()


def test_an_export_on_a_machine_with_a_gpu_is_about_that_machine(allowlist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from moeguard.gate import allowlist as module

    there = {"arch": "sm90", "gpu": "NVIDIA H200", "cuda": "12.9", "driver": "580.1",
             "packages": {"flashinfer-python": "0.7.4", "torch": "2.13.0"}}
    monkeypatch.setattr(module, "this_machine", lambda: there)
    done = call("allow", "export", "--allowlist", allowlist, "--format", "vllm-cli")
    assert (done.code, done.out) == (0, "--no-enable-flashinfer-autotune --moe-backend flashinfer_cutlass\n")
    assert done.err.startswith("off: flashinfer_cutlass with bf16: ") and "driver 580.1" in done.err
