"""Bad input over all commands, as one table: exit code 2, one clear line, nothing on stdout, nothing half-written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import SMOKE, Called, Run, call
from ledger_files import ENTRY, ledger

from moeguard.core.case import Case
from moeguard.engine import rundir

Cli = Callable[..., Called]
GOOD = json.loads(Case.model_validate({"shape": dict(num_tokens=3, hidden_size=16, intermediate_size=16, num_experts=4, top_k=2)})
                  .to_json())
FILES = {
    "good.json": json.dumps(GOOD),
    "empty.json": "",
    "null.json": "null",
    "cut.json": json.dumps(GOOD)[:-20],
    "newer.json": json.dumps(GOOD | {"schema": 2}),
    "top_k.json": json.dumps(GOOD | {"shape": GOOD["shape"] | {"top_k": 5}}),
    "zero.json": json.dumps(GOOD | {"shape": GOOD["shape"] | {"hidden_size": 0}}),
    "syntax.py": "def broken(:\n",
    "imports.py": "import no_such_module_at_all\n",
    "methods.py": "import moeguard as mg\nclass B(mg.Backend):\n    name = 'b'\n    def prepare(self, w, c): ...\n"
                  "mg.register(B())\n",
    "nothing.py": "x = 1\n",
    "good.toml": ledger(),
    "schema.toml": ledger(schema=2),
    "twice.toml": ledger({}, {}),
    "field.toml": ledger({"colour": "red"}),
    "kind.toml": ledger({"kinds": ["wrong"]}),
    "versions.toml": ledger({"versions": "about 1"}),
    "date.toml": ledger({"expires": "soon"}),
    "condition.toml": ledger({"condition": [{"field": "shape.tokens", "at_least": 1}]}),
    "value.toml": ledger({"condition": [{"field": "routing.kind", "equals": "doubles"}]}),
    "outside.toml": ledger({"case": ENTRY["case"] | {"shape": ENTRY["case"]["shape"] | {"num_tokens": 0}}}),
    "deadly.toml": ledger({"crash_class": True}),
    "top_k.toml": ledger({"case": ENTRY["case"] | {"shape": ENTRY["case"]["shape"] | {"top_k": 5}}}),
    "cut.toml": "max_num_batched_tokens = ",
    "serve.yaml": "max_num_batched_tokens: [",
    "tokens.json": '{"max_num_batched_tokens": 0}',
    "a_file": "mine",
    "held/notes.txt": "mine",
    "old/manifest.json": '{"schema": 1, "run_id": "x"}',
    "old/journal.jsonl": '{"event":"run_finished","seconds":1.0}\n{"event":"run_finished","seconds":1.0}\n',
}
SWEEP = "sweep --backend torch_reference --recipe bf16 --device cpu"
BENCH = "bench --backend torch_reference --device cpu"
TABLE = (
    ("run --backend nope", "--backend: unknown value 'nope'; allowed: torch_reference, "),
    ("run --backend nope --recipe bf16", "; a backend of your own needs --plugin FILE.py"),
    ("run --backend", "backend"),
    ("run --recipe fp4", "--recipe"),
    ("run --profile quick", "--profile: unknown value 'quick'; allowed: smoke, "),
    ("run --device tpu", "--device"),
    ("run --plugin syntax.py", "SyntaxError"),
    ("run --plugin imports.py", "no_such_module_at_all"),
    ("run --plugin methods.py", "run"),
    ("run --plugin nothing.py", "registers no backend"),
    ("run --plugin missing.py", "missing.py"),
    ("run --plugin held", "held"),
    ("run --out a_file", "--out"),
    ("run --out held", "other files"),
    ("run --out a_file/run", "cannot be written"),
    ("run --out /proc/moeguard/run", "cannot be written"),
    ("run --resume held", "run directory"),
    ("run --resume held --max-cases 3", "--resume: takes every option from the run directory; --max-cases is not"),
    ("run --resume held --budget 1m", "--budget is not allowed"),
    ("run --resume held --seed 0", "--seed is not allowed"),
    ("run --seed 1 --resume held", "--seed is not allowed"),
    ("run --resume held --backend triton", "--backend is not allowed"),
    ("run --resume held --plugin nothing.py", "--plugin is not allowed"),
    ("run --resume held --workers 1", "--workers is not allowed"),
    ("run --resume held --out new", "--out is not allowed"),
    ("run --max-cases many", "--max-cases"),
    ("replay good.json", "--backend"),
    ("replay good.json --backend nope", "nope"),
    ("replay good.json --backend torch_reference --repeat 0", "--repeat"),
    ("replay empty.json --backend torch_reference", "not valid JSON"),
    ("replay null.json --backend torch_reference", "JSON object"),
    ("replay cut.json --backend torch_reference", "not valid JSON"),
    ("replay newer.json --backend torch_reference", "schema 2"),
    ("replay top_k.json --backend torch_reference", "top_k"),
    ("replay zero.json --backend torch_reference", "hidden_size"),
    ("replay missing.json --backend torch_reference", "missing.json: no such file"),
    ("replay held --backend torch_reference", "held: is a folder; give a file of its cases/"),
    ("replay old/manifest.json --backend torch_reference", "manifest.json: not a case file; cases are in old/cases/"),
    ("replay old/journal.jsonl --backend torch_reference", "journal.jsonl: not a case file; cases are in old/cases/"),
    ("replay good.json --backend b --plugin methods.py", "run"),
    ("replay good.json --backend torch_reference --out held", "other files"),
    ("replay", "CASE"),
    ("run --ledger missing.toml", "cannot read the ledger"),
    ("run --ledger held", "cannot read the ledger"),
    ("run --ledger good.json", "not valid TOML"),
    ("run --ledger schema.toml", "schema 2 is not supported; allowed: 1"),
    ("run --ledger twice.toml", "id: used twice"),
    ("run --ledger field.toml", "colour: unknown field; allowed: id"),
    ("run --ledger kind.toml", "kinds.0"),
    ("run --ledger versions.toml", "versions: not a version range; allowed: PEP 440"),
    ("run --ledger date.toml", "allowed: YYYY-MM-DD"),
    ("run --ledger condition.toml", "'shape.tokens' is unknown; allowed: shape.num_tokens"),
    ("run --ledger value.toml", "'doubles'; allowed: uniform"),
    ("run --ledger outside.toml", "own case is not covered"),
    ("run --ledger deadly.toml", "crash_class"),
    ("run --ledger top_k.toml", "top_k: 5 exceeds num_experts 4"),
    ("replay good.json --backend torch_reference --ledger missing.toml", "cannot read the ledger"),
    ("replay --ledger missing.toml", "cannot read the ledger"),
    ("replay --ledger twice.toml", "id: used twice"),
    ("replay --ledger good.toml --tactic 1", "--tactic"),
    ("replay --ledger --out run", "--out"),
    ("replay --ledger --strict", "--strict"),
    ("replay --ledger --repeat 0", "--repeat"),
    ("replay --ledger --backend nope", "nope"),
    ("replay --ledger --device tpu", "--device"),
    ("replay --ledger --timeout never", "--timeout"),
    ("sweep", "--backend"),
    ("sweep --backend torch_reference", "--recipe"),
    ("sweep --backend nope --recipe bf16", "nope"),
    ("sweep --backend torch_reference --recipe nope", "--recipe"),
    (f"{SWEEP} --tokens 0", "--tokens"),
    (f"{SWEEP} --tokens 1,-4", "--tokens"),
    (f"{SWEEP} --tokens 1,,4", "--tokens"),
    (f"{SWEEP} --tokens many", "--tokens"),
    (f"{SWEEP} --tokens 1.5", "--tokens"),
    (f"{SWEEP} --tokens 99999999999", "num_tokens"),
    (f"{SWEEP} --hidden 0", "--hidden"),
    (f"{SWEEP} --intermediate -8", "--intermediate"),
    (f"{SWEEP} --experts 0", "--experts"),
    (f"{SWEEP} --experts 4 --top-k 5", "--top-k"),
    (f"{SWEEP} --top-k 0", "--top-k"),
    (f"{SWEEP} --hidden 2000000000 --intermediate 2000000000", "GiB"),
    (f"{SWEEP} --layer GPT-9", "--layer: unknown value 'GPT-9'; allowed: Qwen3-30B-A3B, "),
    (f"{SWEEP} --layer Kimi-K2 --hidden 64", "--hidden"),
    (f"{SWEEP} --layer Kimi-K2 --layer Kimi-K2/2", "allowed: MODEL or MODEL/tpN"),
    (f"{SWEEP} --layer Kimi-K2/", "allowed: MODEL or MODEL/tpN"),
    (f"{SWEEP} --layer Kimi-K2/tp7", "--layer: "),
    (f"{SWEEP} --layer Kimi-K2 --tokens 99999999999", "--tokens: "),
    (f"{SWEEP} --activation swilu", "--activation: unknown value 'swilu'; allowed: swiglu, geglu, "),
    (f"{SWEEP} --repeat 0", "--repeat"),
    (f"{SWEEP} --timeout never", "--timeout"),
    (f"{SWEEP} --seed -1", "seed"),
    (f"{SWEEP} --plugin syntax.py", "SyntaxError"),
    (f"{SWEEP} --out held", "other files"),
    (f"{SWEEP} --device tpu", "--device"),
    (f"{SWEEP} --ledger missing.toml", "cannot read the ledger"),
    ("bench --backend nope --device cpu", "nope"),
    (f"{BENCH} --recipe fp4", "--recipe: unknown value 'fp4'; allowed: bf16, "),
    (f"{BENCH} --layer GPT-9", "--layer: unknown value 'GPT-9'; allowed: Qwen3-30B-A3B, "),
    (f"{BENCH} --layer /tp2", "--layer"),
    (f"{BENCH} --layer Mixtral-8x7B/", "allowed: MODEL or MODEL/tpN"),
    (f"{BENCH} --layer Mixtral-8x7B/2", "allowed: MODEL or MODEL/tpN"),
    (f"{BENCH} --layer Mixtral-8x7B/tp0", "allowed: MODEL or MODEL/tpN"),
    (f"{BENCH} --layer Mixtral-8x7B/ep2", "allowed: MODEL or MODEL/tpN"),
    (f"{BENCH} --layer Mixtral-8x7B/tp5", "--layer: "),
    (f"{BENCH} --layer Mixtral-8x7B --layer Qwen3-30B-A3B/tp7", "tp_size"),
    (f"{BENCH} --tokens 0", "--tokens"),
    (f"{BENCH} --tokens 1,,4", "--tokens"),
    (f"{BENCH} --tokens many", "--tokens"),
    (f"{BENCH} --tokens 99999999999", "--tokens: "),
    (f"{BENCH} --tokens 1000000000", "GiB"),
    (f"{BENCH} --seed -1", "seed"),
    (f"{BENCH} --seed x", "--seed"),
    (f"{BENCH} --device tpu", "--device"),
    (f"{BENCH} --plugin syntax.py", "SyntaxError"),
    (f"{BENCH} --plugin missing.py", "missing.py"),
    (f"{BENCH} surplus", "surplus"),
    ("tune-audit", "--max-num-tokens: missing"),
    ("tune-audit --dp-size 2", "--max-num-tokens: missing"),
    ("tune-audit --max-num-tokens 1 --layer GPT-9", "--layer: unknown value 'GPT-9'; allowed: Qwen3-30B-A3B, "),
    ("tune-audit --max-num-tokens 1 --tune-max-num-tokens 8 --tune-max-num-tokens 0", "--tune-max-num-tokens: 0; allowed: 1 to "),
    ("tune-audit --max-num-tokens 0", "--max-num-tokens: 0; allowed: 1 to "),
    ("tune-audit --max-num-tokens -1", "--max-num-tokens"),
    ("tune-audit --max-num-tokens many", "--max-num-tokens"),
    ("tune-audit --max-num-tokens 99999999999", "--max-num-tokens"),
    ("tune-audit --max-num-tokens 1 --dp-size 0", "--dp-size: 0; allowed: 1 to "),
    ("tune-audit --max-num-tokens 1 --chunk-size 0", "--chunk-size: 0; allowed: 1 to "),
    ("tune-audit --max-num-tokens 1 --cudagraph-capture-size 0", "--cudagraph-capture-size: 0; allowed: 1 to "),
    ("tune-audit --max-num-tokens 1 --tune-max-num-tokens 0", "--tune-max-num-tokens: 0; allowed: 1 to "),
    ("tune-audit --max-num-tokens 1 --tune-max-num-tokens 1.5", "--tune-max-num-tokens"),
    ("tune-audit --max-num-tokens 1 --kernel triton", "--kernel: unknown value 'triton'; allowed: cutlass, trtllm, "),
    ("tune-audit --max-num-tokens 1 --flashinfer-version 9.9", "--flashinfer-version: unknown value '9.9'; allowed: 0.6.6, "),
    ("tune-audit --max-num-tokens 1 --flashinfer-version latest", "--flashinfer-version: unknown value 'latest'"),
    ("tune-audit --config missing.json", "--config: missing.json cannot be read: No such file"),
    ("tune-audit --config held", "--config: held: another suffix; allowed: .json, .toml, .yaml, .yml"),
    ("tune-audit --config serve.yaml", "malformed"),
    ("tune-audit --config empty.json", "malformed"),
    ("tune-audit --config null.json", "no object"),
    ("tune-audit --config cut.toml", "malformed"),
    ("tune-audit --config tokens.json", "--config: max-num-batched-tokens: 0; allowed"),
    ("tune-audit --config good.json", "--max-num-tokens: missing"),
    ("tune-audit --vllm-args --port=1", "--max-num-tokens: missing"),
    ("tune-audit --vllm-args --max-num-batched-tokens=x", "--vllm-args: max-num-batched-tokens: 'x'"),
    ("tune-audit --vllm-args --max-num-batched-tokens='1", "--vllm-args: No closing quotation"),
    ("tune-audit --max-num-tokens 1 surplus", "surplus"),
    ("tune-audit --max-num-tokens 1 --measur", "--measur"),
    ("doctor --device tpu", "--device"),
    ("doctor --timeout 0", "--timeout"),
    ("doctor surplus", "surplus"),
    ("doctor --plugin methods.py", "run"),
    ("selftest --profile quick", "--profile"),
    ("selftest --workers 0", "--workers"),
    ("selftest --device tpu", "--device"),
    ("selftest --seed x", "--seed"),
    ("report", "directory"),
    ("report missing", "run directory"),
    ("report held", "run directory"),
    ("report a_file", "run directory"),
    ("report held --nope", "--nope"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files of the table."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its content, without compiled modules."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
            if "__pycache__" not in path.parts}


def refused(done: Called, *words: str) -> None:
    """Exit code 2, and one line that holds ``words``."""
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("moeguard: ") and done.err.endswith("\n") and done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err and len(done.err) < 600
    assert all(word in done.err for word in words), done.err


@pytest.mark.parametrize("as_json", ["", " --json"], ids=["text", "json"])
@pytest.mark.parametrize(("command", "word"), TABLE, ids=[command for command, _ in TABLE])
def test_bad_input(command: str, word: str, as_json: str, folder: Path, cli: Cli, clean_registry: None) -> None:
    if as_json and command.startswith("doctor --plugin"):
        pytest.skip("a process for each; once is enough")
    before = tree(folder)
    refused(cli(*f"{command}{as_json}".split()), word)
    assert tree(folder) == before


@pytest.mark.parametrize("command", ["run", "sweep", "replay"])
def test_a_full_disk_at_the_start_leaves_nothing(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rundir.os, "replace", full)
    arguments = {"run": ["run", *SMOKE, "--max-cases", 1], "sweep": [*SWEEP.split(), "--tokens", 2],
                 "replay": ["replay", "good.json", "--backend", "torch_reference", "--device", "cpu"]}[command]
    before = tree(folder)
    refused(cli(*arguments, "--out", "run"), "run", "No space left on device")
    assert tree(folder) == before


def test_a_disk_that_fills_up_leaves_a_run_that_can_be_resumed(
        healthy_plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("os.pwrite", full)
        refused(cli("run", "--plugin", healthy_plugin, *SMOKE, "--max-cases", 3, "--json", "--out", tmp_path / "run"),
                "journal.jsonl", "No space left on device", "resumed")
    done = cli("run", "--resume", tmp_path / "run", "--json")
    assert (done.code, done.data["cases"]) == (0, 3)


def test_a_full_disk_at_the_reports(clean_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    from moeguard.report import writer

    copy = Path(shutil.copytree(clean_run.path, tmp_path / "copy"))
    before = tree(copy)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer.os, "replace", full)
    refused(call("report", copy), "reports cannot be written", "No space left on device")
    assert tree(copy) == before


def test_a_run_of_a_newer_version(clean_run: Run, tmp_path: Path, cli: Cli) -> None:
    import shutil

    copy = Path(shutil.copytree(clean_run.path, tmp_path / "copy"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["options"]["colour"] = "red"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    refused(cli("report", copy), "manifest.json")
    (copy / "manifest.json").write_text(json.dumps(manifest | {"schema": 2}))
    for command in ("report", "run --resume"):
        refused(cli(*command.split(), copy), "schema 2")
