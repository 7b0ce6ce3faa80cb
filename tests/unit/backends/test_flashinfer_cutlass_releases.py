"""The adapter beside real FlashInfer packages, without a GPU: its version table, its calls, the tuner's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flashinfer_site import VERSIONS, run_in_site

TOKENS = [1, 300, 2049, 4097, 9000]
#: Questions by name: a function of ``flashinfer_calls`` and its arguments.
WANTED: dict[str, list[Any]] = {
    name: [name] for name in ("features", "table_row", "runner_arguments", "forced", "availability")
} | {
    "biased": ["bound", "bf16", {"weights": {"bias": True}, "activation": {"kind": "swiglu_oai", "limit": 7.0}}],
    "fp8_per_tensor": ["bound", "fp8_per_tensor", {}],
    "fp8_block": ["bound", "fp8_block", {}],
    "buckets": ["buckets", TOKENS, 8192],
    "caps": ["caps", [8192, 512, 8192]],
}

Facts = dict[str, Any]


@pytest.fixture(params=VERSIONS, scope="module")
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def facts(version: str) -> Facts:
    """Every answer from one child process, since an import of torch and FlashInfer costs seconds."""
    answers: Facts = run_in_site(version, "flashinfer_calls:run", WANTED)
    return answers


def test_the_version_table_says_what_the_release_has(facts: Facts) -> None:
    assert facts["table_row"] == facts["features"]


def test_calls_bind_to_the_real_signature(version: str, facts: Facts) -> None:
    call = facts["biased"]
    assert call["fc1_expert_weights"] == ["bfloat16", 4, 256, 256]
    assert call["fc1_expert_biases"] == ["bfloat16", 4, 256]
    assert call["swiglu_limit"] == call["swiglu_alpha"] == ["float32", 4]
    assert call["token_selected_experts"] == ["int32", 5, 2]
    assert ("workspace_buffer" in call) == (version != "0.6.6")


def test_the_runner_takes_the_adapter_s_arguments(version: str, facts: Facts) -> None:
    assert ("use_fused_finalize" in facts["runner_arguments"]) == (version != "0.6.6")


def test_scales_of_fp8(facts: Facts) -> None:
    assert facts["fp8_per_tensor"]["quant_scales"] == [["float32", 4], ["float32", 4], ["float32", 4], ["float32"]]
    assert facts["fp8_block"]["use_deepseek_fp8_block_scale"] is True
    assert facts["fp8_block"]["quant_scales"] == [["float32", 4, 2, 2], ["float32", 4, 2, 1]]


def test_a_tactic_is_forced(version: str, facts: Facts) -> None:
    assert facts["forced"] == ({"profile_ids": None, "answers": [3, 50]} if version == "0.6.6"
                               else {"profile_ids": [3, 50], "answers": None})


def test_buckets_are_those_of_the_release(version: str, facts: Facts) -> None:
    assert facts["buckets"] == ([1, 256, 2048, 4096, 8192] if version == "0.6.6" else [1, 512, 2560, 8192, 8192])


def test_the_cap_of_an_earlier_call_sticks(facts: Facts) -> None:
    assert facts["caps"] == [8192, 512, 512]


def test_compiled_modules_are_found_where_the_release_looks(version: str, tmp_path: Path) -> None:
    got = run_in_site(version, "flashinfer_calls:modules_found", str(tmp_path))  # alone: its folders are chosen at import
    assert got["names"] == ["fused_moe_90", "trtllm_utils"]
    assert got["before"].startswith("FlashInfer's compiled modules fused_moe_90 and trtllm_utils are missing")
    assert got["jit"] is None and got["aot"] is None
    assert got["ahead of time"] == [True, True]
    assert got["arguments of a build"] == [2, 2]


def test_availability_gives_the_reason(facts: Facts) -> None:
    assert set(facts["availability"]) == {"no CUDA device"}
