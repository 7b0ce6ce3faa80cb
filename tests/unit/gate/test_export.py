"""Decisions in the words of serving engines, read back as these engines read them (tests/engine_tables.py)."""

from __future__ import annotations

import json
from typing import Any

import engine_tables as engines
import pytest
import yaml
from gate_entries import TODAY, entry, evidence, toml

from moeguard.core.errors import MoeguardError
from moeguard.gate.allowlist import Allowlist
from moeguard.gate.blocklist import VARIABLE
from moeguard.gate.export import ENGINES, OPS, SGLANG, VLLM, Setting, text
from moeguard.gate.policy import Policy

CUTLASS = {"backend": "flashinfer_cutlass"}
OFF = {"autotune": "off", "levels": []}
BAD = "(3, -1)"


def setting(*entries: dict[str, Any], missing: tuple[str, ...] = (), blocklist: str | None = None) -> Setting:
    known = Allowlist.parse(toml(*entries), "list")
    return Setting.of([one.enforced(one.decide("O2", Policy.load(), TODAY), blocklist) for one in known.entries], missing)


def taken(form: str, found: Setting) -> dict[str, Any]:
    """Whether the engine tunes, and the backend that it uses; ``auto`` when none is pinned."""
    written = text(form, found)
    if form == "vllm-cli":
        return engines.vllm(written)
    if form == "vllm-json":
        return engines.vllm(f"--kernel-config '{written}'")
    if form == "vllm-yaml":
        return engines.vllm_file(yaml.safe_load(written))
    if form == "sglang-cli":
        told = engines.sglang(written)
        assert told.pop("skip_ops") == []
        return told
    variables = engines.environment(written)
    skipped = variables.get("VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS", "").split(",")
    assert set(skipped) <= {"", *engines.FLASHINFER_OPS} and variables["VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR"]
    return {"autotune": skipped == [""], "backend": None}


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


@pytest.mark.parametrize("backend", VLLM)
@pytest.mark.parametrize("form", ENGINES)
def test_every_form_is_obeyed(form: str, backend: str) -> None:
    pinned = None if form == "vllm-env" else (SGLANG if form == "sglang-cli" else VLLM)[backend]
    assert taken(form, setting(entry(backend=backend))) == {"autotune": True, "backend": pinned}
    assert taken(form, setting(entry(backend=backend, **OFF))) == {"autotune": False, "backend": pinned}


def test_names_are_those_of_the_engines() -> None:
    assert set(VLLM.values()) <= set(engines.VLLM_BACKENDS) and set(SGLANG.values()) <= set(engines.SGLANG_BACKENDS)
    assert {op for ops in OPS.values() for op in ops} <= set(engines.FLASHINFER_OPS)


def test_the_environment_has_a_cache_of_its_own() -> None:
    on, off = text("vllm-env", setting(entry(**CUTLASS))), text("vllm-env", setting(entry(**CUTLASS, **OFF)))
    assert on.startswith("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR=moeguard-autotune-") and "SKIP_OPS" not in on
    assert off.splitlines()[1] == "VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS=trtllm::fused_moe::gemm1,trtllm::fused_moe::gemm2"
    assert on.splitlines()[0] != off.splitlines()[0]
    assert text("vllm-env", setting(entry(**CUTLASS)), cache_dir="/a b") == "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR='/a b'"


def test_sglang_may_leave_out_the_operations_of_the_backend_alone() -> None:
    told = engines.sglang(text("sglang-cli", setting(entry(**CUTLASS, **OFF)), skip_ops=True))
    assert told == {"autotune": True, "skip_ops": list(OPS["flashinfer_cutlass"]), "backend": "flashinfer_cutlass"}
    assert text("sglang-cli", setting(entry(**CUTLASS)), skip_ops=True) == "--moe-runner-backend flashinfer_cutlass"
    every = engines.sglang(text("sglang-cli", setting(), skip_ops=True))["skip_ops"]
    assert set(every) == {op for ops in OPS.values() for op in ops}


@pytest.mark.parametrize(("found", "reason"), [
    (setting(), "no such cell"),
    (setting(entry()), "no single backend"),
    (setting(entry(**CUTLASS), entry(backend="triton")), "no single backend"),
    (setting(entry(**CUTLASS), entry(**CUTLASS, **OFF, recipe="fp16")), "fp16: off"),
    (setting(entry(**CUTLASS), missing=("x/y",)), "x/y is not in the allowlist"),
    (setting(entry(**CUTLASS, **OFF, backend_use="avoid")), "choose another backend"),
    (setting(entry(**CUTLASS, quarantined=[BAD])), f"{VARIABLE} is not set"),
])
def test_whatever_is_not_certain_is_off(found: Setting, reason: str) -> None:
    assert not found.autotune and reason in " ".join(found.reasons)
    assert all(taken(form, found)["autotune"] is False for form in ENGINES)


def test_a_backend_to_avoid_is_not_pinned() -> None:
    assert text("vllm-cli", setting(entry(**CUTLASS, **OFF, backend_use="avoid"))) == "--no-enable-flashinfer-autotune"


def test_with_a_quarantine_on_carries_the_blocklist(tmp_path: Any) -> None:
    file = tmp_path / "block list.json"
    file.write_text(json.dumps({"invalid_tactics": {"trtllm::fused_moe::gemm1::MoERunner": [3]}}))
    found = setting(entry(**CUTLASS, quarantined=[BAD]), blocklist=str(file))
    assert found.autotune and found.decisions[0].quarantined == (BAD,)
    assert engines.environment(text("vllm-env", found, blocklist=str(file)))[VARIABLE] == str(file)
    assert VARIABLE not in text("vllm-env", setting(entry(**CUTLASS)), blocklist=str(file))
    other = text("vllm-env", setting(entry(**CUTLASS))).splitlines()[0]
    assert text("vllm-env", found, blocklist=str(file)).splitlines()[0] != other, "what was cached before is not used"


@pytest.mark.parametrize("cells", [entry(**CUTLASS), entry(**CUTLASS, **OFF), entry(**CUTLASS, evidence=evidence(cases=0))])
def test_the_flag_and_the_configuration_are_never_together(cells: dict[str, Any]) -> None:
    for form in ENGINES:
        written = text(form, setting(cells))
        assert not ("flashinfer-autotune" in written and "enable_flashinfer_autotune" in written)
        assert not any(line.startswith("enable-flashinfer-autotune: false") for line in written.splitlines())
    with pytest.raises(ValueError, match="mutually exclusive"):
        engines.vllm(f"{text('vllm-cli', setting(cells))} --kernel-config '{text('vllm-json', setting(cells))}'")


def test_the_recorded_loader_drops_a_flat_false_which_is_why_the_file_is_nested() -> None:
    assert engines.vllm_file({"enable-flashinfer-autotune": False})["autotune"] is None
    assert engines.vllm_file({"no-enable-flashinfer-autotune": True})["autotune"] is False


@pytest.mark.parametrize(("form", "options", "message"), [
    ("vllm", {}, "--format: unknown value 'vllm'; allowed: vllm-cli"),
    ("vllm-cli", {"cache_dir": "x"}, "--cache-dir: not for vllm-cli; allowed with --format vllm-env"),
    ("vllm-env", {"skip_ops": True}, "--skip-ops: not for vllm-env; allowed with --format sglang-cli"),
])
def test_another_form_or_option_is_refused(form: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(MoeguardError, match=message):
        text(form, setting(), **options)
