"""The cuTile and Frost adapters: what they take and declare, and their calls beside the real FlashInfer 0.7.4 without a GPU."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
import torch
from flashinfer_site import run_in_site

from moeguard.backends.flashinfer_unified import library
from moeguard.backends.flashinfer_unified.backend import named
from moeguard.backends.flashinfer_unified.cutile import FlashInferCuTile
from moeguard.backends.flashinfer_unified.frost import FlashInferFrost
from moeguard.core.case import Case

SHAPE = {"num_tokens": 4, "hidden_size": 256, "intermediate_size": 128, "num_experts": 4, "top_k": 2}
CUTILE, FROST = FlashInferCuTile(), FlashInferFrost()
Facts = dict[str, Any]

VALUES: dict[str, list[Any]] = {
    "cutile bf16": ["cutile", "bf16"],
    "cutile bf16 forced": ["cutile", "bf16", {"activation": {"kind": "relu2"}}, "(64, 64, 32, 4, 64, 32, 4)"],
    "cutile fp8_per_tensor": ["cutile", "fp8_per_tensor", {"scales": {"kind": "heterogeneous"}}],
    "cutile mxfp4_bf16": ["cutile", "mxfp4_bf16", {"activation": {"kind": "swiglu_oai", "limit": 2.0}}],
    "frost bf16": ["frost", "bf16", {"activation": {"kind": "swiglu_oai", "alpha": 1.5, "beta": 0.5}}],
    "frost fp16 forced": ["frost", "fp16", {"activation": {"kind": "geglu_tanh"}}, "('ffma', 2, 8)"],
    "frost fp8_per_tensor": ["frost", "fp8_per_tensor", {"scales": {"kind": "heterogeneous"}}],
    "frost fp8_per_tensor without gate": ["frost", "fp8_per_tensor", {"activation": {"kind": "relu2"}}],
    "frost fp8_block": ["frost", "fp8_block", {"shape": {"intermediate_size": 128}}],
    "frost mxfp4_bf16": ["frost", "mxfp4_bf16", {"activation": {"kind": "geglu"}}],
}
#: Every activation that a recipe has there; with fp8_per_tensor, swiglu_oai is refused.
VALUES |= {
    f"{family} {recipe} {kind}": [family, recipe, {"activation": {"kind": kind}, "shape": {"intermediate_size": 128}}]
    for family, backend in {"cutile": CUTILE, "frost": FROST}.items() for recipe in backend.formats
    for kind in ("swiglu", "geglu", "geglu_tanh", "swiglu_oai", "relu2", "silu", "gelu")
    if (recipe, kind) != ("fp8_per_tensor", "swiglu_oai")
}
REFUSED: dict[str, list[Any]] = {
    f"{family} {name}": [family, fields] for family in ("cutile", "frost")
    for name, fields in {"zero": {"shape": SHAPE | {"num_tokens": 0}}, "gaps": {"layout": {"kind": "noncontiguous"}}}.items()
}
OFFERED = {f"{family} {recipe}": [family, recipe] for family, recipes in {
    "cutile": ("bf16", "fp8_per_tensor", "mxfp4_bf16"), "frost": ("bf16", "mxfp4_bf16")}.items() for recipe in recipes}
TUNED = {name: OFFERED[name] for name in ("cutile bf16", "cutile mxfp4_bf16", "frost bf16")}


def case(recipe: str = "bf16", shape: dict[str, int] | None = None, **fields: Any) -> Case:
    return Case.model_validate({"shape": SHAPE | (shape or {}), "recipe": recipe, **fields})


@pytest.fixture(scope="module")
def facts() -> Facts:
    answers: Facts = run_in_site("0.7.4", "flashinfer_unified_calls:all_answers", VALUES, REFUSED, OFFERED, TUNED)
    return answers


@pytest.mark.parametrize("name", VALUES)
def test_preparation_and_packing_mean_what_the_case_says(facts: Facts, name: str) -> None:
    """The library's own preparation and packing, then kernels in torch: right by the reference under the declared rounding."""
    answer = facts["values"][name]
    assert answer["ok"], answer
    if len(VALUES[name]) == 4:
        assert answer["seen"] == VALUES[name][3]


def test_without_a_tactic_the_library_s_default_runs(facts: Facts) -> None:
    seen = {name: answer["seen"] for name, answer in facts["values"].items()}
    assert seen["cutile bf16"] == "(32, 128, 64, 1, 128, 64, 1)"
    assert seen["frost bf16"] == "('ffma', 1)" and seen["frost mxfp4_bf16"] == "('ffma', 1, 4)"


def test_the_library_refuses_what_the_traits_call_unsupported(facts: Facts) -> None:
    said = facts["refused"]
    assert said["cutile zero"] == "NotImplementedError: CuTileBf16Runner does not support zero tokens."
    assert said["frost zero"].startswith("ValueError: frost_low_latency input exceeds")
    assert "contiguous" in said["cutile gaps"] and "contiguous" in said["frost gaps"]


def test_tactics(facts: Facts) -> None:
    listed = facts["offered"]
    assert all(len(set(tactics)) == len(tactics) for tactics in listed.values())
    assert "(32, 128, 64, 1, 128, 64, 2)" in listed["cutile bf16"] and "(32, 64, 32, 4, 128, 64, 1)" in listed["cutile bf16"]
    assert {len(named(tactic)) for tactic in listed["cutile fp8_per_tensor"]} == {8}
    assert len(listed["frost bf16"]) == 16 and "('ffma', 8, 8)" in listed["frost bf16"]
    assert len(listed["frost mxfp4_bf16"]) == 16 + 48 + 24


@pytest.mark.parametrize("name", TUNED)
def test_tuning(facts: Facts, name: str) -> None:
    """The real tuner: vacuous where nothing can be timed, which needs a GPU; else the tactic that it measured as the fastest."""
    vacuous, chosen = facts["tuned"][name]
    assert "failed while" in vacuous
    assert chosen in facts["offered"][name] if name.startswith("frost") else len(named(chosen)) == 7 + ("mxfp4" in name)


@pytest.mark.parametrize(("backend", "given", "reason"), [
    (CUTILE, case("fp16"), "no kernel on SM90 for recipe fp16"),
    (CUTILE, case("fp8_block"), "no kernel on SM90 for recipe fp8_block"),
    (CUTILE, case(parallel={"ep_size": 2}), "no expert parallelism (supports_expert_parallelism is False)"),
    (CUTILE, case(weights={"bias": True}), "no biases"),
    (CUTILE, case(shape={"num_tokens": 8193}), "num_tokens 8193 is above tune_max_num_tokens 8192"),
    (CUTILE, case("mxfp4_bf16", {"intermediate_size": 32}),
     "intermediate_size 32 of a rank is less than 64, and no tile of the kernel fits"),
    (CUTILE, case("fp8_per_tensor", activation={"kind": "swiglu_oai"}),
     "gate and up share one scale in the kernel; with swiglu_oai that of up is no factor"),
    (FROST, case(shape={"num_tokens": 9}), "num_tokens 9 is above 8"),
    (FROST, case(shape={"num_experts": 64, "top_k": 33}), "top_k 33 is above 32"),
    (FROST, case(shape={"hidden_size": 192}), "hidden_size 192 of a rank is not a multiple of 128"),
    (FROST, case("fp8_block", {"intermediate_size": 256}, parallel={"tp_size": 4}),
     "intermediate_size 64 of a rank is not a multiple of 128"),
    (FROST, case(activation_format="batched"), "the standard activation format only"),
])
def test_refusals(backend: FlashInferCuTile | FlashInferFrost, given: Case, reason: str) -> None:
    found = backend.supports(given)
    assert not found.supported and found.reason == reason


def test_supported() -> None:
    assert all(CUTILE.supports(case(recipe)).supported for recipe in ("bf16", "fp8_per_tensor", "mxfp4_bf16"))
    assert all(FROST.supports(case(recipe)).supported for recipe in ("bf16", "fp16", "fp8_per_tensor", "fp8_block", "mxfp4_bf16"))
    assert CUTILE.supports(case(parallel={"tp_size": 2})).supported


def test_declared_rounding() -> None:
    relu2 = {"activation": {"kind": "relu2"}}
    assert FROST.numerics(case()).projection == "none" and CUTILE.numerics(case()).projection == "bf16"
    assert FROST.numerics(case("fp8_per_tensor")).intermediate == "bf16"
    assert FROST.numerics(case("fp8_per_tensor", **relu2)).intermediate == "e4m3_per_tensor"
    assert FROST.numerics(case("fp16")).expert_output == "fp16"
    assert FROST.numerics(case("fp8_block")).accumulate == "fp32"
    assert FROST.numerics(case("fp8_block"), "('wgmma', 2, 4, 128)").accumulate == "fp8_hopper"
    assert FROST.numerics(case(), "('wgmma', 2, 4, 128)").accumulate == "fp32"


@pytest.mark.parametrize("tactic", ["ffma", "(1,", [1, 2], ()])
def test_a_tactic_that_is_none(tactic: Any) -> None:
    with pytest.raises(ValueError, match="allowed: -1, or a tuple"):
        named(tactic)


@pytest.mark.parametrize(("version", "reason"), [
    (None, "flashinfer-python is not installed"),
    ("0.6.6", "FlashInfer 0.6.6 does not have the unified MoE API that the adapter drives; known: 0.7.4"),
    ("0.7.4", "no CUDA device"),
])
def test_availability(monkeypatch: pytest.MonkeyPatch, version: str | None, reason: str) -> None:
    monkeypatch.setattr(library, "installed", lambda: version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert CUTILE.availability().reason == FROST.availability().reason == reason


@pytest.mark.parametrize(("found", "reason"), [
    (None, "nvidia-cutlass-dsl is not installed"), ("4.7.2", "nvidia-cutlass-dsl 4.7.2 is too old; Frost takes 4.8 or newer"),
    ("4.8.1", None),
])
def test_packages_of_a_family(monkeypatch: pytest.MonkeyPatch, found: str | None, reason: str | None) -> None:
    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(library, "version", version)
    assert library.frost_refusal() == reason
    if found is None:
        assert library.cutile_refusal() == "cuda-tile is not installed"
