"""Bad usage and bad input: exit code 2, one line on stderr, nothing on stdout, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import ROOT, Called, Run

from moeguard.core.case import Case

Cli = Callable[..., Called]
GOOD = json.loads(Case.model_validate({"shape": dict(num_tokens=3, hidden_size=16, intermediate_size=16, num_experts=4, top_k=2)})
                  .to_json())


def refused(done: Called, *words: str) -> None:
    """Exit code 2, and one line that holds ``words``."""
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("moeguard: ") and done.err.endswith("\n") and done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err


RUN_OPTIONS = [
    ("--backend nope", "nope", "torch_reference"),
    ("--recipe nope", "--recipe", "nope", "bf16"),
    ("--profile nope", "profile", "nope", "smoke"),
    ("--device nope", "--device", "nope", "cpu"),
    ("--budget 0", "--budget"),
    ("--budget -1s", "--budget"),
    ("--budget 5x", "--budget", "5x"),
    ("--budget nan", "--budget", "nan"),
    ("--budget inf", "--budget", "inf"),
    ("--budget s", "--budget"),
    ("--max-cases 0", "--max-cases"),
    ("--max-cases -3", "--max-cases"),
    ("--workers 0", "--workers"),
    ("--workers two", "--workers"),
    ("--seed -1", "--seed"),
    ("--timeout 0s", "--timeout"),
    ("--timeout soon", "--timeout"),
    ("--no-such-option", "--no-such-option"),
    ("surplus", "surplus"),
    ("--plugin missing.py", "missing.py"),
    ("--resume missing", "missing", "run directory"),
]


@pytest.mark.parametrize("words", RUN_OPTIONS, ids=[words[0] for words in RUN_OPTIONS])
def test_run_options(words: tuple[str, ...], tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "run"
    refused(cli("run", *words[0].split(), *([] if "--resume" in words[0] else ["--out", out]), "--json"), *words[1:])
    assert not out.exists()


def test_cuda_without_a_gpu(tmp_path: Path, cli: Cli) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    refused(cli("run", "--device", "cuda", "--out", tmp_path / "run"), "--device", "cuda")


def test_out_of_another_run(clean_run: Run, cli: Cli) -> None:
    refused(cli("run", "--out", clean_run.path), "--out", "another run")


def test_out_with_other_files(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused(cli("run", "--out", tmp_path), "--out", "other files")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_out_that_is_a_file_or_lies_below_one(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").write_text("")
    refused(cli("run", "--out", tmp_path / "file"), "--out")
    refused(cli("run", "--out", tmp_path / "file" / "run"), "--out", "cannot be written")


def test_out_beside_resume(clean_run: Run, tmp_path: Path, cli: Cli) -> None:
    refused(cli("run", "--resume", clean_run.path, "--out", tmp_path / "x"), "--resume")


PLUGINS = {
    "syntax error": ("def broken(:\n", "SyntaxError"),
    "import error": ("import no_such_module_at_all\n", "ModuleNotFoundError", "no_such_module_at_all"),
    "exits": ("raise SystemExit(5)\n", "SystemExit"),
    "registers nothing": ("x = 1\n", "registers no backend"),
    "missing method": ("import moeguard as mg\nclass B(mg.Backend):\n    name = 'b'\nmg.register(B())\n", "prepare"),
    "missing method, not registered": ("import moeguard as mg\nclass B(mg.Backend):\n    name = 'b'\n", "prepare"),
    "bad name": ("import moeguard as mg\nclass B(mg.Backend):\n    name = 'B-1'\n    def prepare(self, w, c): ...\n"
                 "    def run(self, *a, **k): ...\nmg.register(B())\n", "B-1", "a-z"),
    "no backend": ("import moeguard as mg\nmg.register(3)\n", "moeguard.Backend"),
    "null bytes": ("\0", "ource code"),
}


@pytest.mark.parametrize("name", PLUGINS)
def test_plugins(name: str, tmp_path: Path, cli: Cli, clean_registry: None) -> None:
    source, *words = PLUGINS[name]
    (tmp_path / "plugin.py").write_text(source)
    refused(cli("run", "--plugin", tmp_path / "plugin.py", "--out", tmp_path / "run"), "plugin.py", *words)
    assert not (tmp_path / "run").exists()


def changed(**changes: object) -> str:
    return json.dumps({**GOOD, **changes})


CASES = {
    "empty": ("", "not valid JSON"),
    "truncated": (json.dumps(GOOD)[:40], "not valid JSON"),
    "a list": ("[1]", "object"),
    "too deep": ("[" * 100_000, ""),
    "newer schema": (changed(schema=2), "schema", "allowed: 1"),
    "no schema": (json.dumps({name: value for name, value in GOOD.items() if name != "schema"}), "schema"),
    "unknown field": (changed(colour="red"), "colour"),
    "unknown kind": (changed(inputs={"kind": "nope"}), "inputs.kind"),
    "text for a number": (changed(seed="3"), "seed"),
    "negative seed": (changed(seed=-1), "seed"),
    "huge seed": (changed(seed=2**70), "seed"),
    "top_k beyond experts": (changed(shape=GOOD["shape"] | {"top_k": 9}), "top_k", "9"),
    "no experts": (changed(shape=GOOD["shape"] | {"num_experts": 0}), "num_experts"),
    "negative tokens": (changed(shape=GOOD["shape"] | {"num_tokens": -1}), "num_tokens"),
    "fraction of a token": (changed(shape=GOOD["shape"] | {"num_tokens": 1.5}), "num_tokens"),
    "ep that does not divide": (changed(parallel={"ep_size": 3}), "ep_size"),
    "rank beyond size": (changed(parallel={"ep_rank": 1}), "ep_rank"),
    "not a number": (changed(activation={"kind": "swiglu_oai", "alpha": float("nan")}), "alpha"),
    "limit of another activation": (changed(activation={"kind": "silu", "limit": 1.0}), "swiglu_oai"),
    "group that does not divide": (changed(recipe="nvfp4", shape=GOOD["shape"] | {"hidden_size": 72}), "hidden_size", "16"),
    "shape that no memory holds": (changed(shape=GOOD["shape"] | {"hidden_size": 2**31 - 1, "intermediate_size": 2**31 - 1}), ""),
}


@pytest.mark.parametrize("name", CASES)
def test_case_files(name: str, tmp_path: Path, cli: Cli) -> None:
    text, *words = CASES[name]
    (tmp_path / "case.json").write_text(text)
    refused(cli("replay", tmp_path / "case.json", "--backend", "torch_reference", "--device", "cpu", "--out", tmp_path / "run",
                "--json"), *words)
    assert not (tmp_path / "run").exists()


def test_case_files_that_cannot_be_read(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for path, words in (("missing.json", "no such file"), ("", "is a folder"), ("binary.json", "cannot read")):
        refused(cli("replay", tmp_path / path, "--backend", "torch_reference"), str(tmp_path / path), words)


@pytest.mark.parametrize("options", ["--repeat 0", "--timeout 0", "--backend nope", "--device nope"])
def test_replay_options(options: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "case.json").write_text(json.dumps(GOOD))
    refused(cli("replay", tmp_path / "case.json", "--backend", "torch_reference", "--out", tmp_path / "run", *options.split()))


@pytest.mark.parametrize("options", ["", "--backend torch_reference"])
def test_replay_without_what_it_needs(options: str, cli: Cli) -> None:
    refused(cli("replay", *options.split()))


@pytest.mark.parametrize("options", ["--profile nope", "--workers 0", "--device nope", "--seed x"])
def test_selftest_options(options: str, cli: Cli) -> None:
    refused(cli("selftest", *options.split()), options.partition(" ")[0])


def test_report_of_no_run(tmp_path: Path, cli: Cli) -> None:
    refused(cli("report", tmp_path), "not a run directory")
    refused(cli("report", tmp_path / "missing", "--json"), "not a run directory")
    refused(cli("report"))


DAMAGES: dict[str, tuple[str, Callable[[str], str], str]] = {
    "manifest cut": ("manifest.json", lambda text: text[:50], "not valid JSON"),
    "manifest of a newer version": ("manifest.json", lambda text: text.replace('"schema": 1', '"schema": 2'), "schema"),
    "manifest without options": ("manifest.json", lambda text: text.replace('"options"', '"opinions"'), "damaged"),
    "manifest with a wrong type": ("manifest.json", lambda text: text.replace('"workers": 1', '"workers": "many"'), "damaged"),
    "manifest that is a list": ("manifest.json", lambda text: "[]", "schema"),
    "journal line that is no JSON": ("journal.jsonl", lambda text: text.replace("{", "", 1), "line 1"),
    "journal event of a newer version": ("journal.jsonl", lambda text: text + '{"event":"new"}\n', "damaged"),
}


@pytest.mark.parametrize("command", ["report", "run --resume"])
@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_run_directories(name: str, command: str, broken_copy: Path, cli: Cli) -> None:
    file, damage, word = DAMAGES[name]
    (broken_copy / file).write_text(damage((broken_copy / file).read_text()))
    refused(cli(*command.split(), broken_copy), file, word)


def test_no_such_command(cli: Cli) -> None:
    refused(cli("nope"), "nope")


def test_a_real_process_says_it_the_same_way() -> None:
    done = subprocess.run([sys.executable, "-m", "moeguard", "run", "--backend", "nope"], capture_output=True, text=True,
                          check=False, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120)
    refused(Called(done.returncode, done.stdout, done.stderr), "nope")
