"""``moeguard bench``: default and tuned tactics of several backends, judged and timed side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import Called

Cli = Callable[..., Called]

#: One backend for each outcome.
PLUGIN = '''
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference

class Tuned(TorchReference):
    name = "tuned"
    def tune(self, prepared, batch):
        return "split"

class Same(TorchReference):
    name = "same"
    def tune(self, prepared, batch):
        return None

class Vacuous(TorchReference):
    name = "vacuous"
    def tune(self, prepared, batch):
        raise mg.VacuousTuning("every [tactic] was skipped")

class Wrong(Tuned):
    name = "wrong"
    def run(self, prepared, batch, out, *, tactic=None, workspace=None):
        super().run(prepared, batch, out, tactic=tactic)
        if tactic == "split":
            out[:, :4] *= 3

class Raises(Tuned):
    name = "raises"
    def run(self, prepared, batch, out, *, tactic=None, workspace=None):
        raise RuntimeError("no kernel image")

class Refuses(Tuned):
    name = "refuses"
    def supports(self, case):
        return mg.Support.no("needs sm100")

class Absent(Tuned):
    name = "absent"
    def availability(self):
        return mg.Availability.no("needs a [GPU]")

class Unsure(Tuned):
    name = "unsure"
    def availability(self):
        raise OSError("libcuda")

for kind in (Tuned, Same, Vacuous, Wrong, Raises, Refuses, Absent, Unsure):
    mg.register(kind())
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "several.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def bench(plugin: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, clean_registry: None) -> Callable[..., Called]:
    """``moeguard bench`` with named backends on two small layers."""
    from moeguard.fuzz import boundaries

    monkeypatch.setattr(boundaries, "LAYERS", (boundaries.Layer("Tiny-1B", 32, 64, 4, 2),
                                               boundaries.Layer("Wee-2B", 64, 48, 8, 2)))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: object, backends: tuple[str, ...], layers: tuple[str, ...] = ("Tiny-1B",)) -> Called:
        named = [word for name in backends for word in ("--backend", name)]
        named += [word for name in layers for word in ("--layer", name)]
        return cli("bench", "--plugin", plugin, "--device", "cpu", *(("--tokens", 3) if layers else ()), *named, *words)
    return call


def verdicts(data: dict[str, Any]) -> list[str]:
    return [row["verdict"] for row in data["rows"]]


def test_rows_are_every_layer_count_backend_and_arm(bench: Callable[..., Called]) -> None:
    done = bench("--tokens", "5,3", "--json", backends=("torch_reference", "tuned"), layers=("tiny-1b", "Wee-2B/tp2"))
    assert (done.code, done.err, list(done.data)) == (0, "", ["environment", "recipe", "rows", "not_run"])
    assert [(row["layer"], row["tokens"], row["backend"], row["arm"]) for row in done.data["rows"]] == [
        (layer, tokens, backend, arm) for layer in ("tiny-1b", "Wee-2B/tp2") for tokens in (3, 5)
        for backend in ("torch_reference", "tuned") for arm in ("default", "tuned")]
    row = done.data["rows"][3]
    assert list(row) == ["layer", "tokens", "backend", "arm", "tactic", "verdict", "reason", "seconds", "runs", "of_fastest"]
    assert (row["tactic"], row["verdict"], row["reason"]) == ("split", "ok", "")
    assert 1 <= row["runs"] <= 5 and row["seconds"] > 0
    assert done.data["environment"]["device"] == "cpu" and done.data["recipe"] == "bf16"
    for layer in ("tiny-1b", "Wee-2B/tp2"):
        shares = [row["of_fastest"] for row in done.data["rows"] if (row["layer"], row["tokens"]) == (layer, 3)]
        assert min(shares) == 1 and len(shares) == 4


def test_people_get_a_table(bench: Callable[..., Called]) -> None:
    done = bench(backends=("tuned", "vacuous", "absent"))
    lines = done.out.splitlines()
    assert lines[0].split("  ")[0] == "layer" and lines[0].split()[-2:] == ["time", "ratio"]
    assert [line.split()[:5] for line in lines[1:5]] == [
        ["Tiny-1B", "3", "tuned", "default", "-"], ["Tiny-1B", "3", "tuned", "tuned", "split"],
        ["Tiny-1B", "3", "vacuous", "default", "-"], ["Tiny-1B", "3", "vacuous", "tuned", "-"]]
    assert "vacuous: every [tactic] was skipped" in lines[4]
    assert lines[5] == "not run: absent: needs a [GPU]"


@pytest.mark.parametrize(("backend", "code", "found"), [
    ("same", 0, ["ok", "same"]), ("wrong", 1, ["ok", "wrong"]), ("raises", 1, ["crash", "not run"]),
    ("vacuous", 3, ["ok", "vacuous"]), ("refuses", 3, ["refused", "refused"])])
def test_the_exit_code_says_what_was_seen(backend: str, code: int, found: list[str], bench: Callable[..., Called]) -> None:
    done = bench("--json", backends=(backend,))
    assert (done.code, verdicts(done.data)) == (code, found)


def test_a_wrong_answer_counts_more_than_a_vacuous_tuning_and_is_not_the_fastest(bench: Callable[..., Called]) -> None:
    done = bench("--json", backends=("vacuous", "wrong"))
    assert done.code == 1
    assert min(row["of_fastest"] for row in done.data["rows"] if row["verdict"] == "ok") == 1


def test_nothing_that_can_run_is_inconclusive_with_the_reasons(bench: Callable[..., Called]) -> None:
    done = bench("--json", backends=("absent", "unsure"))
    assert (done.code, done.data["rows"]) == (3, [])
    assert done.data["not_run"] == {"absent": "needs a [GPU]", "unsure": "availability() raised OSError: libcuda"}
    done = bench(backends=("absent",))
    assert (done.code, done.out) == (3, "not run: absent: needs a [GPU]\n")


def test_backends_of_a_plug_in_are_the_default(bench: Callable[..., Called]) -> None:
    done = bench("--json", backends=())
    assert list(dict.fromkeys(row["backend"] for row in done.data["rows"])) == [
        "tuned", "same", "vacuous", "wrong", "raises", "refuses"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A throughput of few executions."""
    from moeguard.cli import bench as module

    monkeypatch.setattr(module, "EXECUTIONS", 12)


def test_the_throughput_of_checked_executions_stands_beside_bare_calls(bench: Callable[..., Called], few: None) -> None:
    done = bench("--throughput", "--json", backends=("tuned", "refuses"), layers=())
    assert done.code == 0
    good, refused = done.data["rows"]
    assert list(good) == ["case", "shape", "backend", "tactics", "executions", "seconds", "bare_seconds", "findings", "reason"]
    assert (good["case"], good["backend"], good["executions"], good["findings"]) == ("XS", "tuned", 12, [])
    assert good["seconds"] > 0 and good["bare_seconds"] > 0 and good["tactics"] == 4
    assert (refused["executions"], refused["reason"]) == (0, "needs sm100")


def test_the_throughput_of_a_wrong_backend_is_exit_code_1(bench: Callable[..., Called], few: None) -> None:
    done = bench("--throughput", backends=("wrong",), layers=())
    assert done.code == 1
    assert done.out.split("\n")[0].split()[:5] == ["case", "backend", "tactics", "executions", "checked/s"]
    assert bench("--throughput", backends=("refuses",), layers=()).code == 3


def test_a_throughput_has_its_own_cases(bench: Callable[..., Called]) -> None:
    done = bench("--throughput", backends=("tuned",))
    assert (done.code, done.out) == (2, "")
    assert "--throughput: measures fixed cases; --layer is not allowed beside it" in done.err


@pytest.mark.parametrize(("words", "said"), [(("--recipe", "nope"), "--recipe: unknown value 'nope'"),
                                             (("--tokens", "1"), "--tokens is not allowed beside it")])
def test_what_a_throughput_does_not_take(words: tuple[str, ...], said: str, cli: Cli) -> None:
    done = cli("bench", "--throughput", "--device", "cpu", "--backend", "torch_reference", *words)
    assert (done.code, done.out) == (2, "") and said in done.err
