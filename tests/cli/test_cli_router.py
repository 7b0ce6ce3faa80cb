"""``moeguard router``: built-in routers, own ones, one case again, and bad usage."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import Called

Cli = Callable[..., Called]

PLUGIN = '''
import torch
import moeguard as mg

class LostScaling(mg.Router):
    name = "lost_scaling"

    def supports(self, case):
        return mg.Support.yes() if case.method == "sigmoid_bias" else mg.Support.no("sigmoid with a bias only")

    def route(self, case, logits, bias, ids, weights):
        scores = torch.sigmoid(logits.float())
        chosen = (scores + bias.float()).topk(case.top_k, dim=1).indices
        ids.copy_(chosen)
        picked = scores.gather(1, chosen)
        weights.copy_(picked / (picked.sum(1, keepdim=True) + 1e-20))

class Absent(mg.Router):
    name = "absent"

    def availability(self):
        return mg.Availability.no("needs an [accelerator]")

    def route(self, case, logits, bias, ids, weights):
        raise AssertionError
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("plugin") / "routers.py"
    file.write_text(PLUGIN)
    return file


def test_healthy_routers_are_clean(cli: Cli) -> None:
    done = cli("router", "--max-cases", 12, "--device", "cpu", "--json")
    assert done.code == 0
    assert (done.data["verdict"], done.data["cases"], done.data["findings"]) == ("clean", 12, [])
    assert [one["router"] for one in done.data["routers"]] == ["torch_scores", "torch_argmax"]
    assert all(one["tokens"] > 50 for one in done.data["routers"])
    assert done.data["not_verified"] == [
        {"router": "flashinfer_topk_deepseek", "reason": "flashinfer-python is not installed"}]


def test_own_routers_are_run_and_a_finding_comes_back(cli: Cli, plugin: Path) -> None:
    done = cli("router", "--plugin", plugin, "--max-cases", 20, "--device", "cpu", "--json")
    assert done.code == 1
    (finding,) = done.data["findings"]
    assert (finding["kind"], finding["router"], finding["rule"]) == ("routing_contract", "lost_scaling", "weights")
    assert finding["case"]["scaling_factor"] == 2.5
    (tally,) = done.data["routers"]
    assert tally["refused"] > 0
    assert finding["occurrences"] <= tally["cases"]
    assert done.data["not_verified"] == [{"router": "absent", "reason": "needs an [accelerator]"}]

    words = shlex.split(finding["replay"])
    assert words[:8] == ["moeguard", "router", "--router", "lost_scaling", "--device", "cpu", "--plugin", str(plugin)]
    again = cli("router", *words[2:4], *words[8:], "--device", "cpu")  # this process knows the router by now
    assert again.code == 1
    assert f"routing_contract: lost_scaling: {finding['sentence'][:60]}" in again.out
    assert "(1 case)" in again.out
    assert "\nfindings: 1 case in " in again.out
    assert shlex.join(words[8:]) in again.out


def test_nothing_verified_is_inconclusive(cli: Cli) -> None:
    done = cli("router", "--router", "flashinfer_topk_deepseek", "--max-cases", 3)
    assert done.code == 3
    assert "not verified: flashinfer_topk_deepseek: flashinfer-python is not installed" in done.out
    assert "inconclusive: 3 cases" in done.out


def test_a_file_without_what_the_command_runs_is_refused(cli: Cli, plugin: Path) -> None:
    done = cli("run", "--plugin", plugin, "--max-cases", 1)
    assert (done.code, done.err) == (
        2, f"moeguard: --plugin: {plugin} registers no backend, only routers (moeguard router)\n")


def test_methods_are_chosen(cli: Cli) -> None:
    cases = [cli("router", "--router", "torch_scores", "--method", "llama4_sigmoid", "--max-cases", 5, "--seed", seed,
                 "--device", "cpu", "--json").data["routers"][0] for seed in (1, 1, 2)]
    assert cases[0] == cases[1] != cases[2]


@pytest.mark.parametrize(("words", "sentence"), [
    (["--router", "nothing"], "--router: unknown value 'nothing'; allowed: torch_scores, "),
    (["--method", "argmax"], "--method: unknown value 'argmax'; allowed: softmax_topk, "),
    (["--max-cases", "0"], "--max-cases: 0; allowed: more than 0"),
    (["--case", "{"], "--case: invalid JSON"),
    (["--case", "{}", "--method", "renormalize"], "--method: the case names its method"),
    (["--case", json.dumps({"method": "renormalize", "num_tokens": 1, "num_experts": 4, "top_k": 5})],
     "--case: top_k: 5 exceeds the 4 experts to choose from"),
])
def test_bad_usage_is_one_sentence(cli: Cli, words: list[str], sentence: str) -> None:
    done = cli("router", *words, "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"moeguard: {sentence}")
    assert done.err.count("\n") == 1
