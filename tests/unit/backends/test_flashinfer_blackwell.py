"""The adapters for Blackwell without FlashInfer: refusals by name and version, the gate, and FlashInfer's tuner around a call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import moeguard as mg
from moeguard.backends import registry
from moeguard.backends.flashinfer_blackwell import backend, entries, library, tuner
from moeguard.backends.flashinfer_blackwell.cutedsl import FlashInferCuteDSL
from moeguard.backends.flashinfer_blackwell.cutedsl_batched import FlashInferCuteDSLBatched
from moeguard.backends.flashinfer_blackwell.library import Library, MissingEntry
from moeguard.backends.flashinfer_blackwell.trtllm import FlashInferTRTLLM, FlashInferTRTLLMLogits
from moeguard.core.case import Case
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

SHAPE = {"num_tokens": 4, "hidden_size": 128, "intermediate_size": 128, "num_experts": 4, "top_k": 2}
NAMES = ("flashinfer_cutedsl", "flashinfer_cutedsl_batched", "flashinfer_trtllm", "flashinfer_trtllm_logits")
TACTICS = [(128, ((128, 128), (1, 1), False)), [256, [[256, 128], [2, 1]]]]


def case(recipe: str, **fields: Any) -> Case:
    return Case.model_validate({"shape": SHAPE, "recipe": recipe, **fields})


class TestRefusals:
    @pytest.mark.parametrize(("kind", "release", "wanted", "reason"), [
        (FlashInferCuteDSL, "0.6.18.post1", case("mxfp8"),
         "FlashInfer 0.6.18.post1 has no flashinfer.fused_moe.cute_dsl_fused_moe (first in 0.7.4)"),
        (FlashInferCuteDSL, "0.6.6", case("nvfp4_bf16"),
         "flashinfer.fused_moe.cute_dsl_fused_moe_nvfp4 of FlashInfer 0.6.6 takes no quant_mode (first in 0.6.18.post1)"),
        (FlashInferCuteDSL, "0.6.6", case("nvfp4", activation={"kind": "relu2"}),
         "flashinfer.fused_moe.cute_dsl_fused_moe_nvfp4 of FlashInfer 0.6.6 takes no activation_type (first in 0.6.18.post1)"),
        (FlashInferTRTLLM, "0.6.11.post2", case("fp8_per_tensor"),
         "FlashInfer 0.6.11.post2 has no flashinfer.fused_moe.trtllm_fp8_per_tensor_scale_routed_moe (first in 0.6.18.post1)"),
        (FlashInferTRTLLM, "0.6.11.post2", case("bf16", activation={"kind": "swiglu_oai"}),
         "flashinfer.fused_moe.trtllm_bf16_routed_moe of FlashInfer 0.6.11.post2 takes no gemm1_alpha (first in 0.6.18.post1)"),
        (FlashInferTRTLLM, "0.7.4", case("fp8_per_tensor"), ""),
        (FlashInferCuteDSL, "0.7.4", case("mxfp8"), ""),
    ])
    def test_what_a_release_lacks_is_named_with_its_version(self, kind: Any, release: str, wanted: Case, reason: str) -> None:
        assert kind(Library(release)).supports(wanted).reason == reason

    def test_a_call_of_what_a_release_lacks_says_so_too(self) -> None:
        with pytest.raises(MissingEntry, match=r"FlashInfer 0\.6\.6 has no flashinfer\.fused_moe\.cute_dsl_fused_moe \(first "):
            Library("0.6.6").call(entries.CUTE_DSL, x=None)
        with pytest.raises(MissingEntry, match=r"of FlashInfer 0\.6\.6 takes no quant_mode \(first in 0\.6\.18\.post1\)"):
            Library("0.6.6").call(entries.CUTE_DSL_NVFP4, quant_mode="w4a4")

    def test_an_installation_without_cutlass_dsl(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))
        monkeypatch.setitem(sys.modules, "flashinfer.fused_moe", ModuleType("flashinfer.fused_moe"))
        with pytest.raises(MissingEntry, match=r"^FlashInfer 0\.7\.4 has no flashinfer\.fused_moe\.cute_dsl_fused_moe here: "
                                               r"nvidia-cutlass-dsl is not installed$"):
            Library("0.7.4").call(entries.CUTE_DSL, x=None)

    @pytest.mark.parametrize(("kind", "wanted", "reason"), [
        (FlashInferCuteDSL, case("bf16"), "no CuteDSL kernel for recipe bf16"),
        (FlashInferCuteDSL, case("nvfp4", activation_format="batched"), "the standard activation format only"),
        (FlashInferCuteDSL, case("nvfp4", weights={"bias": True}), "the kernels add no biases"),
        (FlashInferCuteDSL, case("nvfp4", shape=SHAPE | {"hidden_size": 192}),
         "hidden_size 192 of a rank is not a multiple of 128"),
        (FlashInferCuteDSLBatched, case("nvfp4"), "the batched activation format only"),
        (FlashInferCuteDSLBatched, case("mxfp8", activation_format="batched"), "NVFP4 weights and activations only"),
        (FlashInferTRTLLM, case("nvfp4", weights={"bias": True}), "no biases in recipe nvfp4"),
        (FlashInferTRTLLM, case("bf16", activation={"kind": "geglu"}), "no TRTLLM-gen kernel is documented for activation geglu"),
        (FlashInferTRTLLMLogits, case("bf16", routing={"kind": "balanced"}),
         "the ids of kind balanced do not follow from the logits"),
        (FlashInferTRTLLMLogits, case("bf16", routing={"kind": "nan_logits"}),
         "the library does not say what its router makes of NaN"),
        (FlashInferTRTLLMLogits, case("bf16", routing={"method": "grouped_topk"}), "routing method grouped_topk needs"),
        (FlashInferTRTLLMLogits, case("bf16", routing={"method": "llama4_sigmoid"}),
         "the kernel's Llama 4 method picks one expert"),
    ])
    def test_by_capability(self, kind: Any, wanted: Case, reason: str) -> None:
        assert kind(Library("0.7.4")).supports(wanted).reason.startswith(reason)

    def test_no_guard_against_what_the_kernels_do_not_check(self) -> None:
        for fields in ({"routing": {"kind": "duplicate_ids"}}, {"routing": {"kind": "invalid_ids"}},
                       {"layout": {"kind": "nan_padding"}}, {"shape": SHAPE | {"num_tokens": 0}}):
            assert FlashInferTRTLLM(Library("0.7.4")).supports(case("bf16", **fields)).supported
            assert FlashInferCuteDSL(Library("0.7.4")).supports(case("nvfp4", **fields)).supported


class TestAvailability:
    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
        """A machine with FlashInfer and a GPU; its metadata and capability can be set."""
        here: dict[str, Any] = {"flashinfer-python": "0.7.4", "nvidia-cutlass-dsl": "4.8.0", "capability": (10, 0)}
        for module in (library, backend):
            monkeypatch.setattr(module, "installed", lambda: here["flashinfer-python"])
        monkeypatch.setattr(library, "_dsl", lambda: here["nvidia-cutlass-dsl"])
        monkeypatch.setattr(torch.cuda, "is_available", lambda: here["capability"] is not None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: here["capability"])
        monkeypatch.setattr(Library, "function", lambda self, entry: print)
        library.load.cache_clear()
        yield here
        library.load.cache_clear()

    @pytest.mark.parametrize("name", NAMES)
    def test_the_architecture_decides(self, name: str, machine: dict[str, Any]) -> None:
        for capability, release, reason in (
                ((10, 0), "0.7.4", ""), ((10, 7), "0.7.4", ""),
                ((9, 0), "0.7.4", "compute capability 9.0; these kernels of FlashInfer 0.7.4 are for 10.0, 10.3, 10.7"),
                ((12, 0), "0.7.4", "compute capability 12.0; these kernels of FlashInfer 0.7.4 are for 10.0, 10.3, 10.7"),
                ((10, 7), "0.6.6", "compute capability 10.7; these kernels of FlashInfer 0.6.6 are for 10.0, 10.3"),
                (None, "0.7.4", "no CUDA device")):
            machine |= {"capability": capability, "flashinfer-python": release}
            assert registry.get(name).availability().reason == reason

    @pytest.mark.parametrize("name", NAMES)
    def test_a_release_that_is_not_in_the_table(self, name: str, machine: dict[str, Any]) -> None:
        machine["flashinfer-python"] = "0.9.0"
        assert registry.get(name).availability().reason == (
            "FlashInfer 0.9.0 is not in the version table; known: 0.6.6, 0.6.11.post2, 0.6.18.post1, 0.7.4")
        machine["flashinfer-python"] = None
        assert registry.get(name).availability().reason == "flashinfer-python is not installed"

    def test_cutlass_dsl_is_asked_for_where_it_is_needed(self, machine: dict[str, Any]) -> None:
        machine["nvidia-cutlass-dsl"] = None
        assert registry.get("flashinfer_cutedsl").availability().reason == (
            "FlashInfer 0.7.4 has no flashinfer.fused_moe.cute_dsl_fused_moe here: nvidia-cutlass-dsl is not installed")
        assert registry.get("flashinfer_trtllm").availability().available

    def test_an_import_that_fails_is_a_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(self: Library, entry: entries.Entry) -> Any:
            raise RuntimeError("no CUDA\nflavour package")

        monkeypatch.setattr(Library, "function", fails)
        assert registry.get("flashinfer_cutedsl").availability().reason == \
            "FlashInfer 0.7.4 does not import: RuntimeError: no CUDA flavour package"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_the_gate_denies_what_was_never_run(name: str, level: str, tmp_path: Path) -> None:
    file = tmp_path / "allowlist.toml"
    file.write_text('schema = 1\n', encoding="utf-8")
    decision = mg.Allowlist.load(file).decide(name, "nvfp4", level, {
        "arch": "sm_100", "cuda": "13.0", "driver": "580", "packages": {"flashinfer-python": "0.7.4", "torch": "2.11.0"}})
    assert decision.autotune == "off"
    assert not decision.allowed and decision.failed


class FakeTuner:
    """FlashInfer's tuner as the library's functions meet it."""

    chosen: Any = "cached"

    def choose_one(self, custom_op: str, runners: Any, tuning_config: Any, inputs: Any, **named: Any) -> Any:
        return runners[0], self.chosen


class FakeLibrary(Library):
    """A library whose only function asks the tuner and notes what it was answered."""

    def __init__(self, release: str) -> None:
        super().__init__(release)
        self.ran: list[Any] = []
        self.named: dict[str, Any] = {}

    @property
    def tuner(self) -> Any:
        return FakeTuner

    def function(self, entry: entries.Entry) -> Any:
        if entry not in (*entries.TRTLLM.values(), entries.CUTE_DSL, entries.CUTE_DSL_NVFP4):
            return lambda **named: next(value for value in named.values() if isinstance(value, torch.Tensor))
        runner = SimpleNamespace(get_valid_tactics=lambda inputs, profile: [*TACTICS, -1])

        def ask(**named: Any) -> Any:
            self.named = named
            tactic = named.get("tactic")
            if tactic is None:
                tactic = FakeTuner().choose_one("op", [runner], None, [])[1]
            self.ran.append(tactic)
            return [torch.ones(4, 128, dtype=torch.bfloat16)]

        return ask


@pytest.mark.parametrize("release", ["0.6.6", "0.7.4"])
@pytest.mark.parametrize(("kind", "recipe"), [(FlashInferTRTLLM, "fp8_block"), (FlashInferTRTLLMLogits, "fp8_block")])
def test_tactics_are_listed_without_a_launch_and_forced_through_the_tuner(kind: Any, recipe: str, release: str) -> None:
    fake = FakeLibrary(release)
    backend, wanted = kind(fake), case(recipe)
    problem = build_problem(wanted, WeightBank())
    prepared, out = backend.prepare(problem.weights, wanted), torch.zeros(4, 128, dtype=torch.bfloat16)
    listed = backend.tactics(prepared, problem.batch)
    assert [str(tactic) for tactic in listed] == ["(128, ((128, 128), (1, 1), False))", "(256, ((256, 128), (2, 1)))"]
    assert fake.ran == [] and len(set(listed)) == 2
    backend.run(prepared, problem.batch, out)
    backend.run(prepared, problem.batch, out, tactic=listed[1])
    backend.run(prepared, problem.batch, out, tactic=str(listed[0]))
    assert fake.ran == [-1, TACTICS[1], TACTICS[0]]
    with pytest.raises(ValueError, match="allowed: one of the 2 that FlashInfer lists for this batch"):
        backend.run(prepared, problem.batch, out, tactic=(1, 2))
    assert FakeTuner().choose_one("op", ["runner"], None, []) == ("runner", "cached")


def test_a_release_without_output_is_copied_from() -> None:
    for release, passed in (("0.6.6", False), ("0.7.4", True)):
        fake = FakeLibrary(release)
        backend, wanted = FlashInferTRTLLMLogits(fake), case("fp8_block")
        problem = build_problem(wanted, WeightBank())
        out = torch.zeros(4, 128, dtype=torch.bfloat16)
        backend.run(backend.prepare(problem.weights, wanted), problem.batch, out)
        assert ("output" in fake.named) is passed
        assert bool(out.all()) is not passed
        assert not passed or fake.named["output"] is out


def test_ids_are_packed_for_early_releases_and_a_pair_later() -> None:
    for release, packed in (("0.6.11.post2", True), ("0.6.18.post1", False)):
        fake = FakeLibrary(release)
        backend, wanted = FlashInferTRTLLM(fake), case("fp8_block", parallel={"ep_size": 2, "ep_rank": 1})
        problem = build_problem(wanted, WeightBank())
        backend.run(backend.prepare(problem.weights, wanted), problem.batch, torch.zeros(4, 128, dtype=torch.bfloat16))
        ids, weights, given = problem.batch.topk_ids, problem.batch.topk_weights, fake.named["topk_ids"]
        assert ids is not None and weights is not None
        assert (fake.named["local_expert_offset"], fake.named["local_num_experts"], fake.named["num_experts"]) == (2, 2, 4)
        if packed:
            assert torch.equal(given >> 16, ids)
            bits = (given & 0xFFFF).to(torch.int32) << 16
            assert torch.equal(bits.view(torch.float32), weights.to(torch.bfloat16).float())
        else:
            assert given[0] is ids and given[1] is weights


def test_a_call_that_never_asks_the_tuner() -> None:
    with pytest.raises(RuntimeError, match="the call did not ask the tuner for a tactic"):
        tuner.capture(FakeTuner, lambda: None)
