"""What vLLM's settings say about the token range, from a command line and from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moeguard.autotune.serving import Settings, from_arguments, from_file
from moeguard.core.errors import MoeguardError


def from_json(folder: Path, data: Any) -> Settings:
    path = folder / "serve.json"
    path.write_text(json.dumps(data))
    return from_file(path)


@pytest.mark.parametrize(("text", "values"), [
    ("", {}),
    ("serve some/model", {}),
    ("--max-num-batched-tokens 8192 --data-parallel-size 2", {"max_num_tokens": 8192, "dp_size": 2}),
    ("--max_num_batched_tokens=8192 -dp 2", {"max_num_tokens": 8192, "dp_size": 2}),
    ("--max-num-batched-tokens 1 --max-num-batched-tokens 2", {"max_num_tokens": 2}),
    ("--max-num-batched-tokens 8k", {"max_num_tokens": 8000}), ("--max-num-batched-tokens 8K", {"max_num_tokens": 8192}),
    ("--max-num-batched-tokens 1.001k", {"max_num_tokens": 1001}), ("--max-num-batched-tokens 1M", {"max_num_tokens": 2**20}),
    ("--cudagraph-capture-sizes 1 2 512 256", {"capture_size": 512}), ("--cudagraph-capture-sizes 64", {"capture_size": 64}),
    ("--cuda-graph-sizes 1024", {"capture_size": 1024}), ("--max-cudagraph-capture-size 512", {"capture_size": 512}),
    ("--cudagraph-capture-sizes 1 64 --max-cudagraph-capture-size 512", {"capture_size": 512}),
    ("""--compilation-config '{"cudagraph_capture_sizes": [1, 512]}'""", {"capture_size": 512}),
    ("--compilation-config.cudagraph_capture_sizes=[1,256]", {"capture_size": 256}),
    ("-cc.max_cudagraph_capture_size=128", {"capture_size": 128}),
    ("--moe-backend flashinfer_trtllm", {"kernel": "trtllm"}), ("--moe-backend FlashInfer-CuteDSL", {"kernel": "cutedsl"}),
    ("--moe-backend auto", {}), ("--enable-flashinfer-autotune", {"autotune": True}),
    ("--no-enable-flashinfer-autotune", {"autotune": False}), ("--disable-flashinfer-autotune", {"autotune": False}),
    ("--no-enable-flashinfer-autotune --enable-flashinfer-autotune", {"autotune": True}),
    ("""--kernel-config '{"enable_flashinfer_autotune": false, "moe_backend": "flashinfer_cutlass"}'""",
     {"autotune": False, "kernel": "cutlass"}),
    ("--kernel-config.enable_flashinfer_autotune=false", {"autotune": False}),
    ("-O0", {"autotune": False}), ("-O 0", {"autotune": False}), ("--optimization-level=0", {"autotune": False}), ("-O2", {}),
    ("-O0 --enable-flashinfer-autotune", {"autotune": True}),
])
def test_a_command_line(text: str, values: dict[str, Any]) -> None:
    assert from_arguments(text) == Settings(values)


def test_options_that_mean_nothing_here_are_listed_once() -> None:
    found = from_arguments("serve m --tensor-parallel-size 4 --max-num-batched-tokens 7 --enforce-eager -tp 4 --port=-1 --port 2 "
                           """--compilation-config '{"mode": 3}'""")
    assert found.values == {"max_num_tokens": 7}
    assert found.ignored == ("--tensor-parallel-size", "--enforce-eager", "-tp", "--port", "--compilation-config.mode")


def test_a_dotted_option_drops_the_json_beside_it() -> None:
    found = from_arguments("""--kernel-config '{"enable_flashinfer_autotune": false}' """
                           "--kernel-config.moe_backend=flashinfer_trtllm")
    assert found.values == {"kernel": "trtllm"} and "vLLM drops the JSON" in found.notes[0]


@pytest.mark.parametrize(("text", "word"), [
    ("--max-num-batched-tokens 'x", "No closing quotation"), ("--max-num-batched-tokens", "has no value"),
    ("--max-num-batched-tokens --foo", "has no value"), ("--max-num-batched-tokens many", "'many'; allowed: a whole number of 1"),
    ("--max-num-batched-tokens 1.5", "'1.5'"), ("--max-num-batched-tokens 1.5K", "'1.5K'"), ("-dp 0", "'0'"), ("-dp=", "''"),
    ("--data-parallel-size -2", "'-2'"), ("--cudagraph-capture-sizes 1 x", "'x'"), ("--compilation-config 3", "an object"),
    ("--compilation-config {", "an object"), ("--enable-flashinfer-autotune=false", "takes no value"),
    ("--kernel-config.enable_flashinfer_autotune=maybe", "true or false"), ("-O fast", "'fast'"),
    ("--max-num-batched-tokens " + "9" * 5000, "...; allowed")])
def test_a_bad_command_line(text: str, word: str) -> None:
    with pytest.raises(MoeguardError, match="^--vllm-args: ") as raised:
        from_arguments(text)
    assert word in str(raised.value) and len(str(raised.value)) < 300


@pytest.mark.parametrize(("data", "values"), [
    ({}, {}),
    ({"max_num_batched_tokens": 8192, "data-parallel-size": 2, "tune_max_num_tokens": 512},
     {"max_num_tokens": 8192, "dp_size": 2, "tune_max_num_tokens": 512}),
    ({"max_num_batched_tokens": "8K", "dp_size": None, "chunk_size": 4096}, {"max_num_tokens": 8192, "chunk_size": 4096}),
    ({"scheduler_config": {"max_num_batched_tokens": 7}, "parallel_config": {"data_parallel_size": 3}},
     {"max_num_tokens": 7, "dp_size": 3}),
    ({"cudagraph_capture_sizes": [1, 512]}, {"capture_size": 512}), ({"cudagraph_capture_sizes": []}, {}),
    ({"compilation_config": {"cudagraph_capture_sizes": [1, 512]}}, {"capture_size": 512}),
    ({"compilation-config": '{"max_cudagraph_capture_size": 256}'}, {"capture_size": 256}), ({"compilation_config": None}, {}),
    ({"kernel_config": {"enable_flashinfer_autotune": False, "moe_backend": "flashinfer_cutlass"}},
     {"autotune": False, "kernel": "cutlass"}),
    ({"enable_flashinfer_autotune": True}, {"autotune": True}), ({"disable-flashinfer-autotune": True}, {"autotune": False}),
    ({"no-enable-flashinfer-autotune": True}, {"autotune": False}), ({"optimization_level": 0}, {"autotune": False}),
    ({"optimization_level": "O0"}, {"autotune": False}), ({"flashinfer_version": "0.6.6"}, {"flashinfer_version": "0.6.6"})])
def test_a_file(data: dict[str, Any], values: dict[str, Any], tmp_path: Path) -> None:
    assert from_json(tmp_path, data) == Settings(values)


def test_a_flat_false_in_a_file_counts_as_not_set(tmp_path: Path) -> None:
    """vllm serve drops it without a message."""
    found = from_json(tmp_path, {"enable-flashinfer-autotune": False})
    assert found.values == {} and "counts as not set" in found.notes[0]


def test_what_the_audit_cannot_count_is_noted(tmp_path: Path) -> None:
    found = from_json(tmp_path, {"prefill_context_parallel_size": 2, "moe_backend": "triton", "model": "m",
                                 "compilation_config": {"mode": 3}})
    assert found.values == {} and found.ignored == ("model", "compilation-config.mode")
    assert "prefill-context-parallel-size 2" in found.notes[0] and "moe-backend triton" in found.notes[1]
    assert from_json(tmp_path, {"prefill_context_parallel_size": 1}) == Settings()


def test_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text('max-num-batched-tokens = 8192\n[compilation_config]\ncudagraph_capture_sizes = [1, 512]\n')
    assert from_file(path) == Settings({"max_num_tokens": 8192, "capture_size": 512})


@pytest.mark.parametrize("suffix", ["yaml", "yml"])
def test_a_yaml_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"serve.{suffix}"
    path.write_text("max-num-batched-tokens: 8k\nkernel-config:\n  enable_flashinfer_autotune: false\n")
    assert from_file(path) == Settings({"max_num_tokens": 8000, "autotune": False})
    path.write_text("max-num-batched-tokens: 8192\nenable-flashinfer-autotune: false\n")
    found = from_file(path)
    assert found.values == {"max_num_tokens": 8192} and "is dropped by vllm serve" in found.notes[0]


@pytest.mark.parametrize(("name", "text", "word"), [
    ("serve.ini", "max_num_batched_tokens: 1", "another suffix; allowed: .json, .toml, .yaml, .yml"),
    ("serve.yaml", "a: [", "malformed"), ("serve.yaml", "- 1", "no object"),
    ("serve.yaml", "!!python/object:x.y {}", "malformed"),
    ("serve.json", "", "malformed"), ("serve.json", "{", "malformed"),
    ("serve.json", "[" * 100000, "malformed"), ("serve.toml", "x", "malformed"), ("serve.json", "[]", "no object"),
    ("serve.json", '{"max_num_batched_tokens": ' + "9" * 5000 + "}", "malformed"),
    ("serve.json", '{"max_num_batched_tokens": 0}', "max-num-batched-tokens: 0; allowed"),
    ("serve.json", '{"max_num_batched_tokens": true}', "True"), ("serve.json", '{"max_num_batched_tokens": 1.0}', "1.0"),
    ("serve.json", '{"data_parallel_size": [2]}', "[2]"), ("serve.json", '{"cudagraph_capture_sizes": {"a": 1}}', "{'a': 1}"),
    ("serve.json", '{"kernel_config": [1]}', "an object"),
    ("serve.json", '{"kernel_config": {"enable_flashinfer_autotune": 1}}', "true"),
    ("serve.json", "\udce9", "malformed")])
def test_a_bad_file(name: str, text: str, word: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(MoeguardError, match="^--config: ") as raised:
        from_file(tmp_path / name)
    assert word in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    for name, word in (("missing.json", "No such file"), ("folder.json", "Is a directory")):
        with pytest.raises(MoeguardError, match=word):
            from_file(tmp_path / name)
