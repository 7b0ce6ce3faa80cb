"""``moeguard tune-audit``: exit codes, the object, the table, where settings come from, and the measurement."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import Called

from moeguard.checks import tuned_range

Cli = Callable[..., Called]
STORY_1 = ("--max-num-tokens", 8192, "--dp-size", 8, "--cudagraph-capture-size", 512, "--tune-max-num-tokens", 512)
#: A healthy backend, one whose tuning measures nothing, one that raises, and one that takes nothing.
PLUGIN = '''
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference

class Tuned(TorchReference):
    name = "flashinfer_cutlass"
    how = "tuned"
    def availability(self):
        return mg.Availability.yes()
    def supports(self, case):
        return mg.Support.no("needs sm100") if self.how == "refuses" else super().supports(case)
    def tune(self, prepared, batch):
        if self.how == "vacuous":
            raise mg.VacuousTuning("every tactic was skipped")
        if self.how == "raises":
            raise RuntimeError("no kernel image")
        return "split" if batch.topk_ids.shape[0] < 5 else None

mg.register(Tuned())
'''


@pytest.fixture
def audit(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: cli("tune-audit", *words)


def codes(done: Called) -> list[str]:
    return [warning["code"] for warning in done.data["warnings"]]


def test_story_1(audit: Cli) -> None:
    done = audit(*STORY_1, "--json")
    assert (done.code, done.err) == (1, "")
    assert (done.data["served_tokens"], done.data["recommended"], done.data["tuned_tokens"]) == (65536, 65536, 512)
    assert codes(done) == ["tuned_below_served", "tuned_for_cudagraph_capture"]
    assert [set(warning) for warning in done.data["warnings"]] == [{"code", "sentence"}] * 2
    assert done.data["buckets"][-1] == {"bucket": 512, "first": 257, "last": 65536, "worst_ratio": 128.0}


def test_story_2(audit: Cli) -> None:
    for kernel, chunk, recommended in (("trtllm", 300000, 32768), ("trtllm_nvfp4", 300000, 32768),
                                       ("trtllm_nvfp4", 16384, 16384)):
        words = ("--max-num-tokens", 8192, "--dp-size", 4, "--kernel", kernel, "--chunk-size", chunk, "--json")
        done = audit(*words)
        assert (done.code, codes(done), done.data["recommended"]) == (1, ["tuned_below_served"], recommended)
        done = audit(*words, "--tune-max-num-tokens", recommended)
        assert (done.code, codes(done), done.data["served_tokens"]) == (0, [], recommended)


def test_no_warning_is_exit_code_0_and_the_object_is_whole(audit: Cli) -> None:
    done = audit("--max-num-tokens", 8192, "--json")
    assert (done.code, done.err) == (0, "")
    assert list(done.data) == [
        "served_tokens", "recommended", "tuned_tokens", "tuned_by_default", "kernel", "flashinfer_version", "rule",
        "max_num_tokens", "dp_size", "chunk_size", "cudagraph_capture_size", "tune_max_num_tokens_given",
        "autotune", "warnings", "buckets", "notes",
        "ignored", "measured"]
    assert (done.data["kernel"], done.data["flashinfer_version"], len(done.data["buckets"])) == ("cutlass", "0.7.4", 21)
    assert (done.data["ignored"], done.data["measured"]) == ([], None)


def test_people_get_a_table_the_warnings_and_the_recommendation(audit: Cli) -> None:
    done = audit(*STORY_1)
    lines = done.out.splitlines()
    assert done.code == 1 and lines[0].split() == ["bucket", "serves", "T", "/", "bucket"]
    assert lines[10].split() == ["512", "257", "to", "65536", "128.00"]
    assert lines[12].startswith("served: up to 65536 tokens a call; tuned: up to 512; rule: FlashInfer 0.7.4, cutlass")
    assert [line.split(": ")[:2] for line in lines[13:15]] == [
        ["warning", "tuned_below_served"], ["warning", "tuned_for_cudagraph_capture"]]
    assert lines[-1] == "recommended: tune_max_num_tokens = 65536"


def test_people_see_buckets_that_serve_nothing_as_one_row_and_the_default_tactic_by_name(audit: Cli) -> None:
    done = audit("--max-num-tokens", 1024, "--vllm-args", "--port 1")
    assert "1280 to 8192      nothing           -" in done.out and "ignored: --port" in done.out
    done = audit("--max-num-tokens", 9000, "--tune-max-num-tokens", 5000, "--flashinfer-version", "0.6.6")
    assert "default  8192 to 9000           -" in done.out


def test_options_win_over_the_command_line_and_that_over_the_file(audit: Cli, tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    path.write_text(json.dumps({"max_num_batched_tokens": 1, "data_parallel_size": 2, "model": "m", "tune_max_num_tokens": 512,
                                "compilation_config": {"cudagraph_capture_sizes": [1, 512]}, "flashinfer_version": "0.6.6"}))
    done = audit("--config", path, "--json")
    assert (done.data["served_tokens"], done.data["tuned_tokens"], done.data["flashinfer_version"]) == (2, 512, "0.6.6")
    assert (done.data["cudagraph_capture_size"], done.data["ignored"]) == (512, ["model"])
    words = ("--config", path, "--vllm-args", "serve m --max-num-batched-tokens 4096 -dp 4 --seed 1", "--json")
    done = audit(*words)
    assert (done.data["max_num_tokens"], done.data["dp_size"], done.data["ignored"]) == (4096, 4, ["model", "--seed"])
    assert codes(done) == ["tuned_below_served", "tuned_for_cudagraph_capture"]
    done = audit(*words, "--max-num-tokens", 100, "--dp-size", 1, "--flashinfer-version", "0.7.4",
                 "--tune-max-num-tokens", 8192)
    assert (done.code, done.data["served_tokens"], done.data["flashinfer_version"]) == (0, 100, "0.7.4")


def test_autotuning_that_is_off_is_a_warning(audit: Cli) -> None:
    done = audit("--vllm-args", "--max-num-batched-tokens 8192 --no-enable-flashinfer-autotune", "--json")
    assert (done.code, codes(done), done.data["autotune"]) == (1, ["autotune_off"], False)


@pytest.mark.parametrize(("source", "word"), [("--vllm-args", "--vllm-args: "), ("--config", "--config: ")])
def test_bad_settings_are_refused(source: str, word: str, audit: Cli, tmp_path: Path) -> None:
    path = tmp_path / "serve.json"
    path.write_text('{"max_num_batched_tokens": "many"}')
    done = audit(source, path if source == "--config" else "--max-num-batched-tokens many")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1) and word in done.err and "'many'" in done.err


@pytest.mark.parametrize("as_json", [True, False])
def test_a_measurement_without_the_library_is_inconclusive_and_the_audit_is_there(as_json: bool, audit: Cli, clean_registry: None,
                                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    from moeguard.backends import registry

    monkeypatch.setattr(registry, "unavailable", lambda name: f"no {name} here")
    json_too = ("--json",) if as_json else ()
    done = audit("--max-num-tokens", 4096, "--measure", *json_too)
    assert done.code == 3
    if as_json:
        assert done.data["measured"] == {"reason": "no flashinfer_cutlass here"} and len(done.data["buckets"]) == 21
    else:
        assert "not measured: no flashinfer_cutlass here\nrecommended: tune_max_num_tokens = 8192\n" in done.out
    assert audit(*STORY_1, "--measure", *json_too).code == 1
    done = audit("--max-num-tokens", 4096, "--measure", "--kernel", "trtllm", "--json")
    assert done.code == 3 and "not trtllm" in done.data["measured"]["reason"]


@pytest.fixture
def measured(audit: Cli, tmp_path: Path, clean_registry: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Called]:
    """A measurement on a small layer, with a backend whose tuning goes as named."""
    from moeguard.engine import options
    from moeguard.engine.plugins import load_plugins
    from moeguard.fuzz import boundaries

    monkeypatch.setattr(boundaries, "LAYERS", (boundaries.Layer("Qwen3-30B-A3B", 32, 64, 4, 2),))
    monkeypatch.setattr(options, "chosen_device", lambda device: "cpu")

    def call(how: str, *words: object) -> Called:
        path = tmp_path / f"{how}.py"
        path.write_text(PLUGIN.replace('how = "tuned"', f'how = "{how}"'))
        load_plugins([path])
        return audit("--max-num-tokens", 8, "--tune-max-num-tokens", 4, "--measure", *words)
    return call


def test_a_measurement_times_both_tactics_on_what_is_served(measured: Callable[..., Called],
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    from moeguard.fuzz import boundaries

    done = measured("tuned", "--json")
    found = done.data["measured"]
    assert done.code == 1 and list(found) == ["reason", "layer", "recipe", "tokens", "tuned_for", "tactic", "seconds",
                                              "tactic_at_served", "seconds_at_served", "ratio"]
    assert (found["reason"], found["tokens"], found["tuned_for"]) == (None, 8, 4)
    assert (found["tactic"], found["tactic_at_served"]) == ("split", None)
    assert found["seconds"] > 0 and found["ratio"] == round(found["seconds"] / found["seconds_at_served"], 3)
    (small,) = boundaries.LAYERS
    monkeypatch.setattr(boundaries, "LAYERS", (small, small._replace(model="Other")))
    assert measured("tuned", "--json", "--layer", "Other/tp2").data["measured"]["layer"] == "Other/tp2"
    done = measured("tuned")
    assert "measured: Qwen3-30B-A3B bf16, T = 8: the tactic tuned for 4 takes " in done.out


@pytest.mark.parametrize(("how", "word"), [("vacuous", "every tactic was skipped"), ("raises", "no kernel image"),
                                           ("refuses", "needs sm100")])
def test_a_measurement_that_fails_says_why(how: str, word: str, measured: Callable[..., Called]) -> None:
    done = measured(how, "--json")
    assert done.code == 1 and word in done.data["measured"]["reason"]


def test_a_range_that_reaches_what_is_served_leaves_nothing_to_measure(measured: Callable[..., Called]) -> None:
    done = measured("tuned", "--tune-max-num-tokens", 8, "--json")
    assert (done.code, codes(done)) == (1, ["tuned_below_floor"]) and "no two tactics" in done.data["measured"]["reason"]


def test_a_range_that_is_no_bucket_cannot_be_measured(measured: Callable[..., Called]) -> None:
    done = measured("tuned", "--tune-max-num-tokens", 5, "--json")
    assert done.code == 1 and "the range 5 is no bucket of" in done.data["measured"]["reason"]


def test_bad_sizes_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from moeguard.core.errors import MoeguardError

    class Refusing:
        findings: tuple[()] = ()

        def __getattr__(self, name: str) -> object:
            raise MoeguardError("too large")

    assert tuned_range.price(Refusing(), Refusing()) == "too large"  # type: ignore[arg-type]
