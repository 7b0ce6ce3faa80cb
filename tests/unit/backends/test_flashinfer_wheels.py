"""The adapters beside real FlashInfer packages, without a GPU: calls bound, preparations executed, layouts inverted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commandline import ROOT
from flashinfer_site import SITES, run_in_site, site

#: Releases of the checked-in matrix.
MATRIX = ("0.6.6", "0.6.11.post2", "0.6.18.post1", "0.7.4")
FORMATS = {"bf16": 2, "fp8_per_tensor": 2, "mxfp8": 4, "mxfp4_bf16": 4, "nvfp4": 4}
#: Questions by name: a function of ``flashinfer_blackwell_calls`` and its arguments.
WANTED: dict[str, list[Any]] = {
    "asked": ["asked", ["nvfp4", "bf16", "fp8_per_tensor"]], "batched": ["batched_calls"], "logits": ["logits"],
    "tuned": ["tuned"], "batched answer": ["batched_answer"], "second factor": ["cutedsl_second_factor"],
    **{f"cutedsl {recipe} {kind}": ["cutedsl_answer", recipe, kind] for recipe in ("nvfp4", "nvfp4_bf16", "mxfp8", "mxfp4_fp8")
       for kind in ("swiglu", "relu2")},
    **{f"weights {recipe} {kind}": ["trtllm_weights", recipe, kind] for recipe in FORMATS for kind in ("swiglu", "relu2")},
    **{f"factors {recipe}": ["trtllm_factors", recipe] for recipe in ("fp8_per_tensor", "nvfp4")}}

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def facts() -> Facts:
    """Every answer of 0.7.4 from one child process, since an import of torch and FlashInfer costs seconds."""
    answers: Facts = run_in_site("0.7.4", "flashinfer_blackwell_calls:run", WANTED, timeout=300.0)
    return answers


@pytest.fixture(scope="module")
def early() -> Facts:
    """What 0.6.6 is asked."""
    wanted = {"asked": ["asked", ["nvfp4", "fp8_per_tensor"]], "tuned": ["tuned"]}
    answers: Facts = run_in_site("0.6.6", "flashinfer_blackwell_calls:run", wanted, timeout=300.0)
    return answers


def _rows(answer: Facts) -> dict[tuple[str, str], Any]:
    return {(row["adapter"], row["recipe"]): row for row in answer["rows"]}


def test_every_call_binds_and_the_version_table_is_right(facts: Facts, early: Facts) -> None:
    for answer, version in ((facts["asked"], "0.7.4"), (early["asked"], "0.6.6")):
        assert answer["version"] == version and answer["table"] == []
        assert all(one["moved"] is None and one["refused"] is None for one in answer["layouts"])
        assert len(answer["layouts"]) > 10
        for adapter in ("flashinfer_cutedsl", "flashinfer_cutedsl_batched", "flashinfer_trtllm", "flashinfer_trtllm_logits"):
            row = _rows(answer)[adapter, "nvfp4"]
            assert row["holds"] and row["calls"] and row["helpers"], row
    assert _rows(facts["asked"])["flashinfer_cutedsl", "nvfp4"]["cases"] == [
        "swiglu", "swiglu on rank 1 of 2", "swiglu without tokens", "relu2", "geglu_tanh"]


def test_what_a_release_lacks_is_named_with_its_version(early: Facts) -> None:
    row = _rows(early["asked"])["flashinfer_trtllm", "fp8_per_tensor"]
    assert not row["holds"] and row["reason"] == (
        "FlashInfer 0.6.6 has no flashinfer.fused_moe.trtllm_fp8_per_tensor_scale_routed_moe (first in 0.6.18.post1)")
    assert _rows(early["asked"])["flashinfer_trtllm_logits", "fp8_per_tensor"]["holds"]
    assert _rows(early["asked"])["flashinfer_cutedsl", "nvfp4"]["cases"] == [
        "swiglu", "swiglu on rank 1 of 2", "swiglu without tokens"]


@pytest.mark.parametrize("kind", ["swiglu", "relu2"])
@pytest.mark.parametrize(("recipe", "bound"), [("nvfp4", 0.005), ("nvfp4_bf16", 0.005), ("mxfp8", 0.08), ("mxfp4_fp8", 0.08)])
def test_flashinfer_s_own_reference_answers_rightly_on_what_cutedsl_is_given(facts: Facts, recipe: str, kind: str,
                                                                           bound: float) -> None:
    """Interleaving, order of up and gate, scale views, alphas and the offset of experts; MX quantises the input besides."""
    assert facts[f"cutedsl {recipe} {kind}"] < bound


@pytest.mark.parametrize("kind", ["swiglu", "relu2"])
@pytest.mark.parametrize("recipe", FORMATS)
def test_flashinfer_s_own_functions_restore_the_weights_of_trtllm(facts: Facts, recipe: str, kind: str) -> None:
    assert facts[f"weights {recipe} {kind}"] == [True] * FORMATS[recipe]


@pytest.mark.parametrize("recipe", ["fp8_per_tensor", "nvfp4"])
def test_scale_arguments_of_trtllm(facts: Facts, recipe: str) -> None:
    assert max(map(abs, facts[f"factors {recipe}"])) < 1e-6


def test_what_gate_and_up_differ_by_goes_into_the_block_scales(facts: Facts) -> None:
    """So that the intermediate is quantised with the static scale that it has."""
    assert facts["second factor"] < 1e-6


def test_three_calls_of_the_batched_adapter(facts: Facts) -> None:
    operands, scales, first_out, between, second_out, same, masked, factors, most = facts["batched"]
    assert operands == [[most, 128, 4], [768, 128, 4]]
    assert scales == [[32, 4, 1, 4, 4, 4], [32, 4, 6, 4, 4, 4]]
    assert first_out == [most, 768, 4] and between == [4, most, 768] and second_out == [most, 256, 4]
    assert same and masked and factors == [[4], [4]]


def test_the_batched_calls_compute_the_answer(facts: Facts) -> None:
    """Gate before up, scale views, alphas, and the quantiser with the static scale of the intermediate."""
    assert facts["batched answer"] < 0.05


def test_the_library_s_tuner_is_asked_forced_and_read(facts: Facts, early: Facts) -> None:
    for said in (facts["tuned"], early["tuned"]):
        offered, forced, chosen = said["works"]
        assert (offered, forced, chosen) == ([3, 5, 7], 7, 5)
        assert isinstance(said["fails"][2], str) and said["fails"][2]


def test_the_kernel_s_own_router_gets_the_logits(facts: Facts) -> None:
    assert facts["logits"] == {"logits": True, "method": 1, "offset": 4, "local": 4, "experts": 8, "top_k": 3}


@pytest.mark.soak
def test_the_checked_in_matrix_is_what_the_command_writes(tmp_path: Path) -> None:
    folders = [argument for version in MATRIX for argument in ("--wheels", str(site(version)))]
    target = tmp_path / "versions.md"
    command = [sys.executable, "-m", "moeguard", "doctor", *folders, "--markdown", str(target), "--timeout", "10m", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False,
                          env={"PATH": "", "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
                               "FLASHINFER_WORKSPACE_BASE": str(SITES / "work")})
    assert done.returncode == 0, done.stderr
    assert [wheel["version"] for wheel in json.loads(done.stdout)["wheels"]] == list(MATRIX)
    assert target.read_text(encoding="utf-8") == (ROOT / "docs" / "flashinfer-versions.md").read_text(encoding="utf-8")
