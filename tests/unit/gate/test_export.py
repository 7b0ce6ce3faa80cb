"""Decisions in the words of serving engines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gate_entries import PROBLEM, TODAY, entry, evidence, toml

from moeguard.core.errors import MoeguardError
from moeguard.gate.allowlist import Allowlist
from moeguard.gate.export import FORMATS, Setting, text
from moeguard.gate.policy import Policy

CUTLASS = {"backend": "flashinfer_cutlass"}
OFF = {"autotune": "off", "levels": []}


def setting(*entries: dict[str, Any], missing: tuple[str, ...] = ()) -> Setting:
    known = Allowlist.parse(toml(*entries), "list")
    return Setting.of([one.decide("O2", Policy.load(), TODAY) for one in known.entries], missing)


@pytest.mark.parametrize(("form", "on", "off"), [
    ("vllm-cli", "--enable-flashinfer-autotune --moe-backend flashinfer_cutlass",
     "--no-enable-flashinfer-autotune --moe-backend flashinfer_cutlass"),
    ("vllm-json", '{"enable_flashinfer_autotune": true, "moe_backend": "flashinfer_cutlass"}',
     '{"enable_flashinfer_autotune": false, "moe_backend": "flashinfer_cutlass"}'),
    ("vllm-yaml", "kernel-config:\n  enable_flashinfer_autotune: true\n  moe_backend: flashinfer_cutlass",
     "kernel-config:\n  enable_flashinfer_autotune: false\n  moe_backend: flashinfer_cutlass"),
    ("sglang-cli", "--moe-runner-backend flashinfer_cutlass",
     "--disable-flashinfer-autotune --moe-runner-backend flashinfer_cutlass"),
])
def test_one_cell(form: str, on: str, off: str) -> None:
    assert text(form, setting(entry(**CUTLASS))) == on
    assert text(form, setting(entry(**CUTLASS, **OFF))) == off


def test_the_environment_has_a_cache_of_its_own() -> None:
    on, off = text("vllm-env", setting(entry(**CUTLASS))), text("vllm-env", setting(entry(**CUTLASS, **OFF)))
    assert on.startswith("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR=moeguard-autotune-") and "SKIP_OPS" not in on
    assert off.splitlines()[1] == "VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS=trtllm::fused_moe::gemm1,trtllm::fused_moe::gemm2"
    assert on.splitlines()[0] != off.splitlines()[0]
    assert text("vllm-env", setting(entry(**CUTLASS)), cache_dir="/a b") == "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR='/a b'"


@pytest.mark.parametrize(("found", "reason"), [
    (setting(), "no such cell"),
    (setting(entry()), "no single backend"),
    (setting(entry(**CUTLASS), entry(backend="triton")), "no single backend"),
    (setting(entry(**CUTLASS), entry(**CUTLASS, **OFF, recipe="fp16")), "fp16: off"),
    (setting(entry(**CUTLASS), missing=("x/y",)), "x/y is not in the allowlist"),
    (setting(entry(**CUTLASS, **OFF, backend_use="avoid")), "choose another backend"),
])
def test_whatever_is_not_certain_is_off(found: Setting, reason: str) -> None:
    assert not found.autotune and reason in " ".join(found.reasons)
    assert text("vllm-cli", found).startswith("--no-enable-flashinfer-autotune")
    assert text("sglang-cli", found).startswith("--disable-flashinfer-autotune")
    assert json.loads(text("vllm-json", found))["enable_flashinfer_autotune"] is False
    assert "enable_flashinfer_autotune: false" in text("vllm-yaml", found)
    assert "SKIP_OPS=trtllm::" in text("vllm-env", found)


def test_a_backend_to_avoid_is_not_pinned() -> None:
    assert text("vllm-cli", setting(entry(**CUTLASS, **OFF, backend_use="avoid"))) == "--no-enable-flashinfer-autotune"


def test_the_flag_and_the_configuration_are_never_together() -> None:
    for form in FORMATS:
        written = text(form, setting(entry(**CUTLASS, **OFF)))
        assert not ("--no-enable" in written and "kernel" in written)
        assert not any(line.startswith("enable-flashinfer-autotune: false") for line in written.splitlines())


def test_the_block_list_names_bad_tactics() -> None:
    bad = entry(**CUTLASS, **OFF, evidence=evidence(open_findings=[PROBLEM], tactics={"a": 1, "b": 1, "c": 0, "default": 1}))
    known = Allowlist.parse(toml(bad, entry(**CUTLASS, recipe="fp16")), "list")
    data = json.loads(text("flashinfer-blocklist", setting(bad), known.entries))
    assert [(row["backend"], row["recipe"], row["flashinfer"], row["tactics"]) for row in data["blocked"]] == [
        ("flashinfer_cutlass", "bf16", "0.7.4", ["b", "c"])]


def test_another_form_is_refused() -> None:
    with pytest.raises(MoeguardError, match="--format: unknown value 'vllm'; allowed: vllm-cli"):
        text("vllm", setting())
