"""A decision in the words of a serving engine, in a form that the engine really obeys.

Rules (vLLM 0.33.0, SGLang 0.5.23, read in their sources): vLLM takes exactly one of the flag and the kernel configuration;
in a ``--config`` file a flat ``enable-flashinfer-autotune: false`` is dropped, a nested ``kernel-config`` is obeyed; a skip list
works only with a cache directory that no other run has used; the backend is pinned, since ``auto`` is resolved after the
decision. SGLang tunes unless told otherwise.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from moeguard.core.errors import UnknownNameError
from moeguard.gate.allowlist import Entry
from moeguard.gate.decision import Decision
from moeguard.gate.policy import WRONG_ANSWERS

#: Names of our backends in vLLM and in SGLang.
VLLM = {"flashinfer_cutlass": "flashinfer_cutlass", "flashinfer_cutlass_unfused": "flashinfer_cutlass",
        "flashinfer_cutedsl": "flashinfer_cutedsl", "flashinfer_cutedsl_batched": "flashinfer_cutedsl",
        "flashinfer_trtllm": "flashinfer_trtllm", "triton": "triton"}
SGLANG = VLLM
CUTLASS_OPS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
TRTLLM_OPS = ("flashinfer::trtllm_bf16_moe", "flashinfer::trtllm_fp8_per_tensor_scale_moe",
              "flashinfer::trtllm_fp8_per_tensor_scale_routed_moe", "flashinfer::trtllm_fp8_block_scale_moe",
              "flashinfer::trtllm_fp4_block_scale_moe")
#: FlashInfer's names of the tuned operations, by backend.
OPS = {"flashinfer_cutlass": CUTLASS_OPS, "flashinfer_cutlass_unfused": CUTLASS_OPS, "flashinfer_trtllm": TRTLLM_OPS}


@dataclass(frozen=True, slots=True)
class Setting:
    """What an engine is to be told. autotune: on only when every decision is and the backend can be pinned.

    backend: ours, None when the decisions are about several or about one to avoid. reasons: why it is off.
    """

    autotune: bool
    backend: str | None
    decisions: tuple[Decision, ...]
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, decisions: Sequence[Decision], missing: Sequence[str] = ()) -> Setting:
        """One setting for all: an engine has one switch. missing: cells that were asked for and have no entry."""
        reasons = [f"{one.cell.backend} with {one.cell.recipe}: {one.reason}" for one in decisions if not one.allowed]
        reasons += [f"{name} is not in the allowlist" for name in missing]
        names = {one.cell.backend for one in decisions}
        engine = {VLLM.get(name) for name in names}
        pinned = next(iter(sorted(names))) if len(engine) == 1 and None not in engine else None
        if not decisions:
            reasons.append("the allowlist has no such cell")
        elif pinned is None:
            reasons.append(f"no single backend of the engine can be pinned for {', '.join(sorted(names))}")
        elif any(one.backend_use == "avoid" for one in decisions):
            reasons.append(f"{pinned} is to be avoided: choose another backend")
            pinned = None
        return cls(not reasons, pinned, tuple(decisions), tuple(reasons))


def text(form: str, setting: Setting, entries: Sequence[Entry] = (), cache_dir: str | None = None) -> str:
    """The setting in one of ``FORMATS``, without a newline at the end. entries: for the block list. cache_dir: for vllm-env.

    Raises UnknownNameError for an unknown form.
    """
    if form not in FORMATS:
        raise UnknownNameError("--format", form, list(FORMATS))
    if form == "flashinfer-blocklist":
        return json.dumps(blocklist(entries))
    if form == "vllm-env":
        return _vllm_env(setting, cache_dir)
    return _RENDER[form](setting)


def blocklist(entries: Sequence[Entry]) -> dict[str, Any]:
    """Tactics that must not be picked, by cell: those with findings about answers, open or known, that crash or hang, or
    that no right answer was seen from."""
    rows = []
    for entry in entries:
        seen = entry.evidence
        bad = {one.tactic for one in [*seen.open_findings, *seen.known_findings]
               if one.kind in WRONG_ANSWERS or one.kind in ("crash", "hang", "tactic_not_executed")}
        tactics = sorted(bad | (set(seen.tactics) - set(seen.tactics_covered)))
        rows.append({**entry.cell.to_data(), "tactics": tactics})
    return {"schema": 1, "blocked": [row for row in rows if row["tactics"]]}


def _kernel_config(setting: Setting) -> dict[str, Any]:
    backend = {} if setting.backend is None else {"moe_backend": VLLM[setting.backend]}
    return {"enable_flashinfer_autotune": setting.autotune, **backend}


def _vllm_cli(setting: Setting) -> str:
    flag = "--enable-flashinfer-autotune" if setting.autotune else "--no-enable-flashinfer-autotune"
    return flag if setting.backend is None else f"{flag} --moe-backend {VLLM[setting.backend]}"


def _vllm_json(setting: Setting) -> str:
    """The value of ``--kernel-config``."""
    return json.dumps(_kernel_config(setting))


def _vllm_yaml(setting: Setting) -> str:
    """A file for ``--config FILE``."""
    return "\n".join(["kernel-config:", *(f"  {name}: {json.dumps(value) if isinstance(value, bool) else value}"
                                          for name, value in _kernel_config(setting).items())])


def _vllm_env(setting: Setting, cache_dir: str | None) -> str:
    """A dedicated cache directory in any case; the skip list when it is off, else vLLM's own choice."""
    decisions = json.dumps([one.to_data() for one in setting.decisions], sort_keys=True)
    fresh = cache_dir or f"moeguard-autotune-{hashlib.sha256(decisions.encode()).hexdigest()[:12]}"
    lines = [f"VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR={shlex.quote(fresh)}"]
    if not setting.autotune:
        known = dict.fromkeys(op for one in setting.decisions for op in OPS.get(one.cell.backend, ()))
        lines.append(f"VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS={','.join(known or (*CUTLASS_OPS, *TRTLLM_OPS))}")
    return "\n".join(lines)


def _sglang_cli(setting: Setting) -> str:
    words = [] if setting.autotune else ["--disable-flashinfer-autotune"]
    words += [] if setting.backend is None else ["--moe-runner-backend", SGLANG[setting.backend]]
    return shlex.join(words)


_RENDER: dict[str, Callable[[Setting], str]] = {"vllm-cli": _vllm_cli, "vllm-json": _vllm_json, "vllm-yaml": _vllm_yaml,
                                               "sglang-cli": _sglang_cli}
FORMATS = ("vllm-cli", "vllm-json", "vllm-yaml", "vllm-env", "sglang-cli", "flashinfer-blocklist")
