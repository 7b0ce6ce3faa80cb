"""A decision in the words of a serving engine, in a form that the engine really obeys.

Rules (vLLM 0.33.0, SGLang 0.5.23, read in their sources): vLLM takes exactly one of the flag and the kernel configuration;
in a ``--config`` file a flat ``enable-flashinfer-autotune: false`` is dropped, a nested ``kernel-config`` is obeyed; a skip list
works only with a cache directory that no other run has used; the backend is pinned, since ``auto`` is resolved after the
decision. SGLang tunes unless told otherwise. Where tactics are quarantined, the decisions are on only with FlashInfer's
blocklist in force (``Entry.enforced``).
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeguard.core.errors import MoeguardError, UnknownNameError
from moeguard.gate.blocklist import OPS as CUTLASS_OPS
from moeguard.gate.blocklist import VARIABLE
from moeguard.gate.decision import Decision

#: Names of our backends in vLLM and in SGLang.
VLLM = {"flashinfer_cutlass": "flashinfer_cutlass", "flashinfer_cutlass_unfused": "flashinfer_cutlass",
        "flashinfer_cutedsl": "flashinfer_cutedsl", "flashinfer_cutedsl_batched": "flashinfer_cutedsl",
        "flashinfer_trtllm": "flashinfer_trtllm", "triton": "triton"}
SGLANG = VLLM
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


def text(form: str, setting: Setting, *, cache_dir: str | None = None, skip_ops: bool = False,
         blocklist: str | None = None) -> str:
    """The setting in one of ``ENGINES``, without a newline at the end.

    cache_dir: for vllm-env. skip_ops: for sglang-cli, off leaves out the operations of the backend alone. blocklist: path of
    the file that keeps the tuner from quarantined tactics, for vllm-env. Raises UnknownNameError for an unknown form,
    MoeguardError for an option that the form does not have.
    """
    if form not in ENGINES:
        raise UnknownNameError("--format", form, list(FORMATS))
    for option, given, only in (("--cache-dir", cache_dir, "vllm-env"), ("--skip-ops", skip_ops or None, "sglang-cli")):
        if given is not None and form != only:
            raise MoeguardError(f"{option}: not for {form}; allowed with --format {only}")
    if form == "vllm-env":
        return _vllm_env(setting, cache_dir, blocklist)
    if form == "sglang-cli":
        return _sglang_cli(setting, skip_ops)
    return _VLLM[form](setting)


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


def _vllm_env(setting: Setting, cache_dir: str | None, blocklist: str | None) -> str:
    """A dedicated cache directory in any case; the skip list when it is off, else vLLM's own choice."""
    decisions = json.dumps([one.to_data() for one in setting.decisions], sort_keys=True)
    fresh = cache_dir or f"moeguard-autotune-{hashlib.sha256(decisions.encode()).hexdigest()[:12]}"
    lines = [f"VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR={shlex.quote(fresh)}"]
    if not setting.autotune:
        lines.append(f"VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS={','.join(_ops(setting))}")
    elif blocklist and any(one.quarantined for one in setting.decisions):
        lines.append(f"{VARIABLE}={shlex.quote(str(Path(blocklist).resolve()))}")
    return "\n".join(lines)


def _ops(setting: Setting) -> tuple[str, ...]:
    """FlashInfer's names of the operations that the decisions are about; all of MoE when none is known."""
    known = dict.fromkeys(op for one in setting.decisions for op in OPS.get(one.cell.backend, ()))
    return tuple(known) or (*CUTLASS_OPS, *TRTLLM_OPS)


def _sglang_cli(setting: Setting, skip_ops: bool) -> str:
    off = ["--flashinfer-autotune-skip-ops", *_ops(setting)] if skip_ops else ["--disable-flashinfer-autotune"]
    words = [] if setting.autotune else off
    words += [] if setting.backend is None else ["--moe-runner-backend", SGLANG[setting.backend]]
    return shlex.join(words)


_VLLM: dict[str, Callable[[Setting], str]] = {"vllm-cli": _vllm_cli, "vllm-json": _vllm_json, "vllm-yaml": _vllm_yaml}
ENGINES = (*_VLLM, "vllm-env", "sglang-cli")
BLOCKLIST = "flashinfer-blocklist"
FORMATS = (*ENGINES, BLOCKLIST)
