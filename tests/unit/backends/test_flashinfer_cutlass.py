"""The adapter for FlashInfer's CUTLASS MoE without FlashInfer: what it takes and declares, tactic ids, kernel names."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from moeguard.backends.flashinfer_cutlass import backend, build, library, modules, witness
from moeguard.backends.flashinfer_cutlass.backend import FlashInferCutlass, FlashInferCutlassUnfused
from moeguard.backends.flashinfer_cutlass.layouts import EARLIER, LATER, foreign, prepare
from moeguard.backends.flashinfer_cutlass.tactics import Configuration, Counts, Tactic, configuration, expected, singles
from moeguard.backends.flashinfer_cutlass.versions import RELEASES, release
from moeguard.core.case import Case
from moeguard.tensors.weights import make_weights

SHAPE = {"num_tokens": 8, "hidden_size": 256, "intermediate_size": 128, "num_experts": 4, "top_k": 2}
BACKEND = FlashInferCutlass()


def case(recipe="bf16", shape=None, **fields):
    return Case.model_validate({"shape": SHAPE | (shape or {}), "recipe": recipe, **fields})


class TestVersions:
    def test_known(self):
        assert list(RELEASES) == ["0.6.6", "0.6.9", "0.6.11.post2", "0.6.14", "0.6.18.post1", "0.7.4"]
        assert not RELEASES["0.6.9"].interleaved and RELEASES["0.6.11.post2"].interleaved

    def test_unknown_is_refused_by_name(self):
        assert release("0.5.0") == ("FlashInfer 0.5.0 is not in the version table; known: 0.6.6, 0.6.9, 0.6.11.post2, 0.6.14, "
                                    "0.6.18.post1, 0.7.4")

    @pytest.mark.parametrize(("version", "reason"), [
        (None, "flashinfer-python is not installed"), ("0.5.0", "FlashInfer 0.5.0 is not in the version table"),
        ("0.7.4", "no CUDA device"),
    ])
    def test_availability(self, monkeypatch, version, reason):
        monkeypatch.setattr(library, "installed", lambda: version)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        found = BACKEND.availability()
        assert not found.available and found.reason.startswith(reason)

    def test_another_architecture(self, monkeypatch):
        monkeypatch.setattr(library, "installed", lambda: "0.7.4")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
        assert BACKEND.availability().reason == "compute capability 10.0; the adapter drives 9.0 only"


class Spec:
    """Stands in for FlashInfer's ``JitSpec``."""

    def __init__(self, name, aot=False, jit=False, failure=None):
        self.name, self.is_aot, self.jit, self.failure, self.builds = name, aot, jit, failure, []

    @property
    def is_compiled(self):
        return self.is_aot or self.jit

    def build(self, verbose, need_lock):
        if self.failure:
            raise self.failure
        self.builds.append((verbose, need_lock))
        self.jit = True


@pytest.fixture
def hopper(monkeypatch):
    """A machine on which all but FlashInfer's modules is there."""
    monkeypatch.setattr(library, "installed", lambda: "0.7.4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    for module in (library, build, backend):
        monkeypatch.setattr(module, "load", lambda: SimpleNamespace(release=RELEASES["0.7.4"]))
    return monkeypatch


class TestModules:
    @pytest.mark.parametrize(("kernels", "timer", "reason"), [
        (Spec("fused_moe_90"), Spec("trtllm_utils"), "modules fused_moe_90 and trtllm_utils are missing"),
        (Spec("fused_moe_90"), Spec("trtllm_utils", jit=True), "module fused_moe_90 is missing"),
        (Spec("fused_moe_90", aot=True), Spec("trtllm_utils"), "module trtllm_utils is missing"),
        (Spec("fused_moe_90", aot=True), Spec("trtllm_utils", aot=True), None),
        (Spec("fused_moe_90", jit=True), Spec("trtllm_utils", jit=True), None),
    ])
    def test_a_run_never_compiles(self, hopper, kernels, timer, reason):
        hopper.setattr(modules, "needed", lambda: (kernels, timer))
        for one in (FlashInferCutlass(), FlashInferCutlassUnfused()):
            found = one.availability()
            assert found.available is (reason is None)
            command = "python -m moeguard.backends.flashinfer_cutlass.build"
            assert found.reason == ("" if reason is None else f"FlashInfer's compiled {reason}; build with: {command}")

    @pytest.mark.parametrize("place", ["load", "needed"])
    def test_a_failing_import_is_a_reason(self, hopper, place):
        def fails():
            raise ImportError("libcudart.so.13:\n cannot open")

        hopper.setattr(library if place == "load" else modules, place, fails)
        assert BACKEND.availability().reason == \
            "FlashInfer 0.7.4 does not import: ImportError: libcudart.so.13: cannot open"

    def test_nothing_is_imported_where_something_else_is_missing(self, hopper):
        hopper.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
        hopper.setattr(library, "load", lambda: pytest.fail("imported"))
        assert BACKEND.availability().reason.startswith("compute capability 10.0")

    def test_the_command_builds_what_no_package_holds(self, hopper, capsys):
        kernels, timer = Spec("fused_moe_90", aot=True), Spec("trtllm_utils")
        hopper.setattr(modules, "needed", lambda: (kernels, timer))
        assert build.main([]) == 0 and BACKEND.availability().available
        assert (kernels.builds, timer.builds) == ([], [(True, True)])
        assert capsys.readouterr().out == "fused_moe_90: found in a package\ntrtllm_utils: built\n"

    def test_the_command_says_what_went_wrong(self, hopper, capsys):
        hopper.setattr(modules, "needed", lambda: (Spec("fused_moe_90", failure=RuntimeError("Ninja build\nfailed")),))
        assert build.main([]) == 1
        assert capsys.readouterr().err == "error: FlashInfer 0.7.4: Ninja build failed\n"

    def test_the_command_without_flashinfer(self, monkeypatch, capsys):
        monkeypatch.setattr(library, "installed", lambda: None)
        assert build.main([]) == 2
        assert capsys.readouterr().err == "error: flashinfer-python is not installed\n"


class TestForeignLayouts:
    """Which weights the library must tell from its own."""

    @staticmethod
    def of(version):
        """The library with interleaving functions that only mark what went through them."""
        core = SimpleNamespace(interleave_moe_weights_for_sm90_mixed_gemm=lambda value, name: value.flip(2),
                               interleave_moe_scales_for_sm90_mixed_gemm=lambda value, group: value.flip(2))
        return SimpleNamespace(release=RELEASES[version], core=core)

    @pytest.mark.parametrize("recipe", ["mxfp4_bf16", "int4_fp8"])
    def test_four_bit_weights_as_the_earlier_releases_took_them(self, recipe):
        one = case(recipe)
        weights = make_weights(one)
        own, before = prepare(weights, one, self.of("0.7.4")), prepare(weights, one, self.of("0.6.9"))
        (name, other), = foreign(weights, one, self.of("0.7.4")).items()
        assert name == EARLIER == "packed as for FlashInfer up to 0.6.9"
        for mine, theirs in zip((own.fc1, own.fc2, *own.scales), (other.fc1, other.fc2, *other.scales), strict=True):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert torch.equal(other.fc1, before.fc1) and torch.equal(other.fc2, before.fc2)
        assert not torch.equal(own.fc1, other.fc1) and not torch.equal(own.scales[0], other.scales[0])

    def test_scales_of_early_releases_lie_by_blocks_of_128_columns(self):
        one = case("mxfp4_bf16", {"hidden_size": 256, "intermediate_size": 128})
        weights = make_weights(one)
        scales = prepare(weights, one, self.of("0.6.9")).scales[1].view(torch.uint8)
        experts, rows, groups = weights.down.scale.shape
        assert scales.shape == (experts, groups // 4, rows, 4)
        assert torch.equal(scales[1, 0, 5], weights.down.scale[1, 5, :4].view(torch.uint8))

    @pytest.mark.parametrize("recipe", ["mxfp4_bf16", "int4_fp8"])
    def test_four_bit_weights_as_later_releases_take_them(self, recipe):
        one = case(recipe, {"hidden_size": 256, "intermediate_size": 128})
        weights = make_weights(one)
        own = prepare(weights, one, self.of("0.6.9"))
        (name, other), = foreign(weights, one, self.of("0.6.9")).items()
        assert name == LATER == "interleaved as for FlashInfer from 0.6.10 on"
        for mine, theirs in ((own.fc1, other.fc1), (own.fc2, other.fc2)):
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype) and not torch.equal(mine, theirs)
        assert own.scales[0].numel() == other.scales[0].numel() and own.scales[0].dtype == other.scales[0].dtype

    @pytest.mark.parametrize(("recipe", "version"), [("bf16", "0.7.4"), ("mxfp4_fp8", "0.7.4"), ("bf16", "0.6.9")])
    def test_there_is_none_elsewhere(self, recipe, version):
        one = case(recipe)
        assert foreign(make_weights(one), one, self.of(version)) == {}


class TestSupport:
    @pytest.mark.parametrize(("wanted", "reason"), [
        (case(shape={"hidden_size": 260}), "hidden_size 260 of a rank is not a multiple of 8"),
        (case("fp8_per_tensor", shape={"intermediate_size": 40}), "intermediate_size 40 of a rank is not a multiple of 16"),
        (case("fp8_block", shape={"intermediate_size": 192}), "intermediate_size 192 of a rank is not a multiple of 128"),
        (case(activation_format="batched"), "the standard activation format only"),
        (case("fp8_per_tensor", weights={"bias": True}), "gate and up share one scale"),
        (case("fp8_per_tensor", activation={"kind": "swiglu_oai"}), "gate and up share one scale"),
        (case(weights={"bias": True}, parallel={"tp_size": 2, "tp_rank": 1}), "biases are added on tensor-parallel rank 0"),
    ])
    def test_refused_by_capability(self, wanted, reason):
        assert BACKEND.supports(wanted).reason.startswith(reason)

    def test_no_guard_against_what_the_kernel_does_not_check(self):
        for fields in ({"routing": {"kind": "duplicate_ids"}}, {"routing": {"kind": "invalid_ids"}},
                       {"layout": {"kind": "nan_padding"}}, {"shape": {"num_tokens": 0}}):
            assert BACKEND.supports(case(**fields)).supported

    @pytest.mark.parametrize(("version", "wanted", "reason"), [
        ("0.6.9", case(activation={"kind": "geglu_tanh"}), "FlashInfer 0.6.9 has no activation geglu_tanh"),
        ("0.6.14", case(activation={"kind": "geglu_tanh"}), ""),
        ("0.6.9", case("int4_fp8"), "FlashInfer 0.6.9 has no interleaving of int4 scales"),
        ("0.7.4", case("int4_fp8"), ""),
    ])
    def test_what_a_release_lacks(self, version, wanted, reason, monkeypatch):
        monkeypatch.setattr(library, "installed", lambda: version)
        assert BACKEND.supports(wanted).reason == reason

    def test_tactics_of_early_four_bit_kernels_are_not_in_the_table(self, monkeypatch):
        for version, known in (("0.6.9", False), ("0.7.4", True)):
            monkeypatch.setattr(library, "installed", lambda version=version: version)
            assert (None not in BACKEND._configurations(case("mxfp4_bf16"), Tactic(0, -1))) is known
            assert None not in BACKEND._configurations(case("bf16"), Tactic(0, -1))

    def test_a_module_that_was_built_in_part(self, monkeypatch):
        monkeypatch.setenv(library.BUILT, "bf16, fp8_block")
        assert BACKEND.supports(case("bf16")).supported
        assert BACKEND.supports(case("fp16")).reason == \
            "the FlashInfer module was built without fp16 (MOEGUARD_FLASHINFER_RECIPES)"


class TestDeclarations:
    def test_finalize_tactics_are_neither_deterministic_nor_float32(self):
        finalize = Tactic(-1, 45 + 18)
        assert not BACKEND.traits(case(), finalize).deterministic
        assert BACKEND.numerics(case(), finalize).combine == "output"
        for tactic in (None, Tactic(-1, -1), Tactic(3, 45), Tactic(-1, 45 + 36), Tactic(-1, 45 + 72)):
            assert BACKEND.traits(case(), tactic).deterministic
            assert BACKEND.numerics(case(), tactic).combine == "fp32"

    def test_thirty_six_of_the_gemm2_ids_finalize(self):
        counts = expected("bf16", fused=True)
        assert counts == Counts(45, 81)
        assert sum(configuration(counts, 2, 45 + i).finalize for i in range(81)) == 36

    def test_rounding_points(self):
        assert BACKEND.numerics(case()).projection == "bf16"
        assert BACKEND.numerics(case("fp16")).expert_output == "fp16"
        assert BACKEND.numerics(case("fp8_block")).intermediate == "bf16+e4m3_1x128"
        assert BACKEND.numerics(case("fp8_per_tensor")).accumulate == "fp8_hopper"

    def test_ampere_style_kernels_keep_fused_activations_in_float32(self):
        ampere = Tactic(36, -1)
        assert BACKEND.numerics(case(), ampere).projection == "none"
        assert BACKEND.numerics(case(shape={"intermediate_size": 136}), ampere).projection == "bf16"
        assert BACKEND.numerics(case(activation={"kind": "geglu_tanh"}), ampere).projection == "bf16"
        assert BACKEND.numerics(case(activation={"kind": "relu2"}), ampere).projection == "none"

    def test_without_fused_finalize_ids_mean_other_kernels(self):
        plain = FlashInferCutlassUnfused()
        assert plain.traits(case(), Tactic(-1, 45 + 18)).deterministic
        assert configuration(expected("bf16", fused=False), 2, 45 + 18) == Configuration((128, 16), (1, 1), swapped=True)


class TestTactics:
    def test_singles(self):
        assert singles([0, 1], [45]) == (Tactic(0, -1), Tactic(1, -1), Tactic(-1, 45))
        assert str(Tactic(44, 81)) == "(44, 81)"

    def test_ids_outside_of_the_table(self):
        assert configuration(Counts(45, 81), 1, 45) is None
        assert configuration(Counts(7, 7), 1, 0) is None

    def test_mixed_input_kernels(self):
        counts = expected("mxfp4_bf16", fused=True)
        assert counts == Counts(116, 116)
        assert configuration(counts, 1, 115) == Configuration((256, 256), (2, 2), swapped=True)

    def test_a_tactic_is_taken_by_its_name(self):
        finalize = "(-1, 63)"
        assert not BACKEND.traits(case(), finalize).deterministic
        with pytest.raises(ValueError, match="allowed: a pair of ids"):
            BACKEND.numerics(case(), "fastest")


def test_rows_of_gemm1_are_up_then_gate():
    one = case()
    weights = make_weights(one)
    prepared = prepare(weights, one, None)
    assert torch.equal(prepared.fc1[:, :128], weights.up.data) and torch.equal(prepared.fc1[:, 128:], weights.gate.data)


@pytest.mark.parametrize("scales", ["normal", "zero", "bimodal", "tiny"])
def test_the_scale_of_up_is_folded_into_the_quantisation_of_the_intermediate(scales):
    one = case("fp8_per_tensor", scales={"kind": scales, "exponent": -5})
    weights = make_weights(one)
    gate, quant, down = prepare(weights, one, None).scales
    live = gate > 0
    torch.testing.assert_close(gate[live] * quant[live] * weights.intermediate_scale, weights.up.scale[live])
    torch.testing.assert_close(down, weights.down.scale * weights.intermediate_scale)
    assert bool(torch.isfinite(quant).all())


class TestWitness:
    """Names that a profiler recorded on an H200 (FlashInfer 0.7.4, CUDA 13.0), both GEMMs of each forced tactic."""

    NAMES = json.loads(Path(__file__).with_name("kernel_names.json").read_text())

    @pytest.mark.parametrize("tactic", NAMES)
    def test_the_kernels_tell_the_tactic(self, tactic):
        assert tuple(witness.gemms(self.NAMES[tactic])) == BACKEND._configurations(case(), tactic)

    @pytest.mark.parametrize("tactic", NAMES)
    def test_another_tactic_is_not_taken_for_it(self, tactic):
        others = [other for other in self.NAMES if other != tactic]
        ran = tuple(witness.gemms(self.NAMES[tactic]))
        same = {str(BACKEND._configurations(case(), tactic))}
        assert all(ran != BACKEND._configurations(case(), other) for other in others
                   if str(BACKEND._configurations(case(), other)) not in same)

    MIXED = json.loads(Path(__file__).with_name("kernel_names_mxfp4.json").read_text())

    @pytest.mark.parametrize("tactic", MIXED)
    def test_the_kernels_of_four_bit_weights_tell_it_too(self, tactic):
        assert tuple(witness.gemms(self.MIXED[tactic])) == BACKEND._configurations(case(recipe="mxfp4_bf16"), tactic)

    def test_what_ran_instead_is_named(self):
        prepared = prepare(make_weights(case()), case(), None)
        assert BACKEND._seen(prepared, Tactic(1, -1), self.NAMES["(0, -1)"]) == \
            "128x16 cluster 1x1 and 128x16 cluster 1x1"
        assert BACKEND._seen(prepared, Tactic(0, -1), self.NAMES["(0, -1)"]) == Tactic(0, -1)
        assert BACKEND._seen(prepared, Tactic(0, -1), ["void otherKernel<...>"]) is None

    def test_names_of_other_kernels_are_no_gemm(self):
        assert witness.gemms(["void finalizeMoeRoutingKernel<...>", "Memset (Device)"]) == []
