"""The adapter beside real FlashInfer packages, without a GPU: its version table, its calls, the tuner's state."""

import pytest
from flashinfer_site import VERSIONS, run_in_site


def ask(version, name, *arguments):
    return run_in_site(version, f"flashinfer_calls:{name}", *arguments)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_version_table_says_what_the_release_has(version):
    assert ask(version, "table_row") == ask(version, "features")


@pytest.mark.parametrize("version", VERSIONS)
def test_calls_bind_to_the_real_signature(version):
    call = ask(version, "bound", "bf16", {"weights": {"bias": True}, "activation": {"kind": "swiglu_oai", "limit": 7.0}})
    assert call["fc1_expert_weights"] == ["bfloat16", 4, 256, 256]
    assert call["fc1_expert_biases"] == ["bfloat16", 4, 256]
    assert call["swiglu_limit"] == call["swiglu_alpha"] == ["float32", 4]
    assert call["token_selected_experts"] == ["int32", 5, 2]
    assert ("workspace_buffer" in call) == (version != "0.6.6")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_runner_takes_the_adapter_s_arguments(version):
    assert ("use_fused_finalize" in ask(version, "runner_arguments")) == (version != "0.6.6")


def test_scales_of_fp8():
    call = ask("0.7.4", "bound", "fp8_per_tensor", {})
    assert call["quant_scales"] == [["float32", 4], ["float32", 4], ["float32", 4], ["float32"]]
    call = ask("0.7.4", "bound", "fp8_block", {})
    assert call["use_deepseek_fp8_block_scale"] is True
    assert call["quant_scales"] == [["float32", 4, 2, 2], ["float32", 4, 2, 1]]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_tactic_is_forced(version):
    got = ask(version, "forced")
    assert got == ({"profile_ids": None, "answers": [3, 50]} if version == "0.6.6"
                   else {"profile_ids": [3, 50], "answers": None})


def test_buckets_are_those_of_the_release():
    assert ask("0.7.4", "buckets", [1, 300, 2049, 4097, 9000], 8192) == [1, 512, 2560, 8192, 8192]
    assert ask("0.6.6", "buckets", [1, 300, 2049, 4097, 9000], 8192) == [1, 256, 2048, 4096, 8192]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cap_of_an_earlier_call_sticks(version):
    assert ask(version, "caps", [8192, 512, 8192]) == [8192, 512, 512]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["jit", "aot"])
def test_compiled_modules_are_found_where_the_release_looks(version, kind, tmp_path):
    got = ask(version, "modules_found", kind, str(tmp_path))
    assert got["names"] == ["fused_moe_90", "trtllm_utils"]
    assert got["before"].startswith("FlashInfer's compiled modules fused_moe_90 and trtllm_utils are missing")
    assert got["after"] is None and got["aot"] == [kind == "aot"] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_a_build_binds_to_the_real_signature(version):
    assert ask(version, "build_arguments") == ["2", "2"]


def test_availability_gives_the_reason():
    assert set(ask("0.7.4", "availability")) == {"no CUDA device"}
