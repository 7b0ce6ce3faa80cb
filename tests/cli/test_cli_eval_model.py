"""``moeguard eval model``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import Called

SMALL = ("eval", "model", "--arch", "qwen3_moe", "--layers", "1", "--texts", "1", "--tokens", "8", "--length", "2", "--device",
         "cpu")
BROKEN = """
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference

class Forgets(TorchReference):
    name = "forgets"
    def run(self, prepared, batch, out, *, tactic=None, workspace=None):
        rows = batch.x.data.shape[0]
        super().run(prepared, batch.rows(__import__("torch").arange(rows - 1)), out[:-1])

mg.register(Forgets())
"""


def test_a_sound_backend_is_noise(cli: Callable[..., Called]) -> None:
    called = cli(*SMALL, "--backend", "torch_reference", "--tuned", "--json")
    data = json.loads(called.out)
    assert called.code == 0 and data["verdict"] == "within noise" and data["not_run"] == {}
    assert [(one["name"], one["kind"]) for one in data["arms"]] == [
        ("torch_reference", "healthy"), ("healthy_coarse", "healthy"), ("torch_reference", "backend"),
        ("torch_reference:tuned", "backend")]
    assert data["setting"]["arch"] == "qwen3_moe" and data["setting"]["size"] == "toy" and "torch" in str(data["environment"])
    assert list(data["arms"][3]["tactics"]) == ["8", "1"] and data["arms"][2]["positions"] == 8


def test_a_broken_backend_is_not(cli: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    plugin = tmp_path / "forgets.py"
    plugin.write_text(BROKEN)
    called = cli(*SMALL, "--plugin", str(plugin), "--mutants")
    assert called.code == 1
    row = next(line for line in called.out.splitlines() if line.startswith("forgets"))
    assert "outside noise" in row and "xinf at 7" in row and "1 of 1 differ, the first at 0" in row
    assert "broken arms are outside the noise" in called.out


def test_a_backend_that_cannot_run_says_why(cli: Callable[..., Called]) -> None:
    called = cli(*SMALL, "--backend", "flashinfer_cutlass", "--json")
    data = json.loads(called.out)
    assert called.code == 3 and data["verdict"] == "inconclusive" and list(data["not_run"]) == ["flashinfer_cutlass"]


@pytest.mark.parametrize(("given", "message"), [
    (("--arch", "llama"), "--arch: unknown value 'llama'; allowed: mixtral, qwen3_moe, deepseek_v3, gpt_oss"),
    (("--layers", "0"), "--layers: 0; allowed: 1 or more"),
    (("--tokens", "0"), "--tokens: 0; allowed: 1 or more"),
    (("--texts", "-1"), "--texts: -1; allowed: 1 or more"),
    (("--length", "-1"), "--length: -1; allowed: 0 or more"),
    (("--seed", "-1"), "--seed: -1; allowed: 0 or more"),
    (("--size", "big"), "--size: 'big'; allowed: real, toy"),
    (("--recipe", "fp8_per_tensor"), "--recipe: fp8_per_tensor stores quantised tokens"),
    (("--backend", "nobody"), "--backend: unknown value 'nobody'"),
])
def test_bad_input(cli: Callable[..., Called], given: tuple[str, ...], message: str) -> None:
    called = cli(*SMALL, *given)
    assert called.code == 2 and called.out == "" and message in called.err and called.err.count("\n") == 1
