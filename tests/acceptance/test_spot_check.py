"""The whole path of a spot check with real parts: transformers' own server, lm-eval itself, experts that carry a mutant.

It makes an environment of its own with lm-eval, transformers and torch (CPU), or takes the interpreter that MOEGUARD_EVAL_PYTHON
names. The model is a Mixtral of two tiny layers that is trained here until it knows a set of made-up problems.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import ROOT, Called
from eval_runs import data

Cli = Callable[..., Called]
pytestmark = pytest.mark.soak
MODEL = ROOT / "tests" / "tiny_moe.py"
NEEDED = ("lm-eval[api]==0.4.13", "transformers[serving]==5.24.0", "torch==2.13.0")
PROBLEMS = 40


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with lm-eval and transformers; moeguard is where PYTHONPATH says."""
    given = os.environ.get("MOEGUARD_EVAL_PYTHON")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("eval") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check",
                    "-c", ROOT / "constraints.txt", *NEEDED], check=True, timeout=1800)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data(tmp_path_factory.mktemp("problems"), PROBLEMS)


@pytest.fixture(scope="module")
def model(python: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the trained model."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([python, MODEL, "train", rows, folder], check=True, timeout=1800, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return folder


@pytest.fixture(scope="module")
def served(python: Path, model: Path) -> Callable[..., str]:
    """The command of a server whose experts are computed by ``backend``, by transformers itself without one."""
    def command(backend: str = "") -> str:
        words = shlex.join([str(python), str(MODEL), "serve", str(model)])
        return f"exec env PYTHONPATH={shlex.quote(str(ROOT))} OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 {words} {{port}} {backend}"

    return command


@pytest.fixture(scope="module")
def spot_check(cli: Cli, python: Path, rows: Path, served: Callable[..., str],
               tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Called]:
    """A spot check of transformers' experts against those of a backend."""
    def run(backend: str, *more: object) -> Called:
        out = tmp_path_factory.mktemp("runs") / "run"
        done = cli("eval", "gsm8k", "--baseline-cmd", served(), "--candidate-cmd", served(backend), "--data", rows, "--shots", 0,
                   "--max-tokens", 48, "--concurrency", 2, "--chunk", 30, "--margin", 0.1, "--python", python, "--out", out,
                   "--json", *more)
        kept = os.environ.get("MOEGUARD_EVAL_KEEP")
        if kept:
            shutil.copytree(out, Path(kept) / (backend or "itself"), dirs_exist_ok=True)
        return done

    return run


def test_the_model_knows_its_problems(spot_check: Callable[..., Called]) -> None:
    """Against itself, which also says that greedy answers of this server come out the same again."""
    done = spot_check("", "--aa")
    one = done.data["filters"]["flexible-extract"]
    assert (done.code, done.data["outcome"]) == (0, "not_worse"), done.data["sentence"]
    assert one["right"][0] >= 0.9 * PROBLEMS and one["losses"] == done.data["noise"]["losses"] == 0
    assert done.data["arms"]["candidate"] == {"answers": PROBLEMS, "errors": 0, "retries": {}}


def test_a_healthy_backend_in_another_precision(spot_check: Callable[..., Called]) -> None:
    done = spot_check("torch_reference")
    assert done.data["outcome"] in ("not_worse", "cannot_tell") and done.data["complete"], done.data["sentence"]


@pytest.mark.parametrize("mutant", ["mutant_last_expert_dropped", "mutant_scatter_shifted", "mutant_gate_up_swapped"])
def test_a_mutant_is_worse(spot_check: Callable[..., Called], mutant: str) -> None:
    done = spot_check(mutant)
    one = done.data["filters"]["flexible-extract"]
    assert (done.code, done.data["verdict"]) == (1, "worse"), json.dumps(one, indent=1)
    assert one["texts"]["equal"] < 1 and one["p_value"] < 0.05


def test_logs_of_lm_eval_itself(cli: Cli, python: Path, rows: Path, served: Callable[..., str], tmp_path: Path) -> None:
    """What ``lm_eval --log_samples`` writes of two such servers is what ``compare`` reads."""
    from moeguard.evals.server import Server

    stock = subprocess.run([python, "-c", "import lm_eval; print(lm_eval.__path__[0])"], capture_output=True, text=True,
                           check=True).stdout.strip()
    task = {"include": f"{stock}/tasks/gsm8k/gsm8k.yaml", "task": "arithmetic", "tag": None, "dataset_path": "json",
            "dataset_name": None, "dataset_kwargs": {"data_files": {"test": str(rows)}}, "training_split": None,
            "fewshot_split": None, "num_fewshot": 0}
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "arithmetic.yaml").write_text(json.dumps(task))
    for name, backend in (("baseline", ""), ("healthy", "torch_reference"), ("mutant", "mutant_gate_up_swapped")):
        with Server(name, None, served(backend), tmp_path / f"{name}.log") as up:
            arguments = {"model": up.models()[0], "base_url": f"{up.url}/v1/completions", "num_concurrent": 2,
                         "tokenized_requests": False, "tokenizer_backend": None}
            subprocess.run([python.parent / "lm_eval", "run", "--model", "local-completions", "--model_args",
                            ",".join(f"{key}={value}" for key, value in arguments.items()), "--tasks", "arithmetic",
                            "--include_path", tmp_path / "tasks", "--output_path", tmp_path / name, "--log_samples",
                            "--gen_kwargs", "max_gen_toks=48"],
                           check=True, timeout=900, env=os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"})
    assert cli("eval", "compare", tmp_path / "baseline", tmp_path / "mutant", "--json").data["verdict"] == "worse"
    healthy = cli("eval", "compare", tmp_path / "baseline", tmp_path / "healthy", "--margin", 0.1, "--json")
    assert healthy.data["outcome"] in ("not_worse", "cannot_tell")
    kept = os.environ.get("MOEGUARD_EVAL_KEEP")
    for name in ("baseline", "healthy", "mutant") if kept else ():
        (Path(str(kept)) / "logs" / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(next((tmp_path / name).rglob("samples_*.jsonl")), Path(str(kept)) / "logs" / name)
