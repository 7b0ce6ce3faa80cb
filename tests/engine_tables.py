"""What serving engines accept, as tables: neither engine installs without a GPU.

Recorded from vLLM 0.33.0: options in ``vllm/engine/arg_utils.py``, fields and backends in ``vllm/config/kernel.py``, the loader
of ``--config`` files in ``vllm/utils/argparse_utils.py``, variables in ``vllm/envs.py``. From SGLang 0.5.23: options in
``sglang/srt/arg_groups/fields/exec_.py``, backends in ``sglang/srt/arg_groups/choices.py``.
"""

from __future__ import annotations

import argparse
import json
import shlex
from typing import Any

VLLM, SGLANG = "0.33.0", "0.5.23"
VLLM_BACKENDS = (
    "auto", "triton", "batched_triton", "deep_gemm", "deep_gemm_mega_moe", "cutlass", "flashinfer_trtllm", "flashinfer_cutlass",
    "flashinfer_cutedsl", "flashinfer_moe_ep_cutedsl", "flashinfer_b12x", "b12x", "flashinfer_moe_ep_mega_deep_gemm", "marlin",
    "humming", "triton_unfused", "aiter", "aiter_mega_moe", "aiter_triton_mxfp4_bf16", "aiter_triton_mxfp4_mxfp4", "flydsl",
    "hpc", "emulation", "rdna3")
#: Fields of ``KernelConfig`` and the types of those that are used.
KERNEL_CONFIG: dict[str, type | None] = {
    "ir_op_priority": None, "enable_flashinfer_autotune": bool, "enable_rocm_segmented_attn_autotune": None,
    "enable_cutedsl_warmup": None, "enable_jit_warmup": None, "monokernel": None, "moe_backend": str,
    "sparse_indexer_topk_backend": None, "linear_backend": None, "linear_backend_per_quant": None}
VLLM_VARIABLES = ("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR", "VLLM_FLASHINFER_AUTOTUNE_SKIP_OPS")
#: FlashInfer's, which every engine passes on.
FLASHINFER_VARIABLES = ("FLASHINFER_TACTICS_BLOCKLIST",)
FLASHINFER_OPS = (
    "trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2", "flashinfer::trtllm_bf16_moe",
    "flashinfer::trtllm_fp8_per_tensor_scale_moe", "flashinfer::trtllm_fp8_per_tensor_scale_routed_moe",
    "flashinfer::trtllm_fp8_block_scale_moe", "flashinfer::trtllm_fp4_block_scale_moe", "fp4_gemm")
SGLANG_BACKENDS = (
    "auto", "deep_gemm", "triton", "triton_kernel", "flashinfer_trtllm", "experimental_sgl_trtllm", "flashinfer_trtllm_routed",
    "flashinfer_cutlass", "flashinfer_mxfp4", "flashinfer_cutedsl", "flashinfer_megamoe", "cutlass", "aiter", "marlin", "humming",
    "experimental_sgl_marlin", "lora_cutedsl", "lora_triton", "lora_marlin", "hpc_ops", "megamoe", "intel_xpu")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ValueError(message)


def vllm(words: str) -> dict[str, Any]:
    """What ``vllm serve`` takes from these words: ``autotune`` (None: not set) and ``backend``. Raises ValueError."""
    parser = _Parser(allow_abbrev=False)
    parser.add_argument("--enable-flashinfer-autotune", "--no-enable-flashinfer-autotune", "--disable-flashinfer-autotune",
                        nargs=0, action=_Switch, dest="autotune", default=None)
    parser.add_argument("--moe-backend", choices=VLLM_BACKENDS, default="auto", dest="backend")
    parser.add_argument("--kernel-config", type=json.loads, dest="config", default={})
    found = vars(parser.parse_args(shlex.split(words)))
    config = found.pop("config")
    if found["autotune"] is not None and "enable_flashinfer_autotune" in config:
        raise ValueError("enable_flashinfer_autotune and kernel_config.enable_flashinfer_autotune are mutually exclusive")
    return found | kernel_config(config) if config else found


def kernel_config(config: dict[str, Any]) -> dict[str, Any]:
    """What ``KernelConfig(**config)`` means. Raises ValueError."""
    for name, value in config.items():
        if name not in KERNEL_CONFIG or not isinstance(value, KERNEL_CONFIG[name] or object):
            raise ValueError(f"{name}: {value!r}")
    backend = config.get("moe_backend", "auto")
    if backend not in VLLM_BACKENDS:
        raise ValueError(f"moe_backend: {backend!r}")
    return {"autotune": config.get("enable_flashinfer_autotune"), "backend": backend}


def vllm_file(data: dict[str, Any]) -> dict[str, Any]:
    """What ``vllm serve --config FILE`` takes from a file: a flat false of an option of the subcommand is dropped."""
    words = []
    for name, value in data.items():
        if isinstance(value, dict):
            words += [f"--{name}", json.dumps(value)]
        elif value is True:
            words.append(f"--{name}")
        elif value is not False:
            words += [f"--{name}", str(value)]
    return vllm(shlex.join(words))


def sglang(words: str) -> dict[str, Any]:
    """What SGLang takes from these words: ``autotune``, ``skip_ops``, ``backend``. Raises ValueError."""
    parser = _Parser(allow_abbrev=False)
    parser.add_argument("--disable-flashinfer-autotune", action="store_false", dest="autotune")
    parser.add_argument("--flashinfer-autotune-skip-ops", nargs="+", choices=FLASHINFER_OPS, default=[], dest="skip_ops")
    parser.add_argument("--moe-runner-backend", choices=SGLANG_BACKENDS, default="auto", dest="backend")
    return vars(parser.parse_args(shlex.split(words)))


def environment(text: str) -> dict[str, str]:
    """The variables of lines NAME=VALUE, quoted for a shell. Raises ValueError on one that no engine reads."""
    found = {}
    for line in text.splitlines():
        (word,) = shlex.split(line)
        name, _, value = word.partition("=")
        if name not in (*VLLM_VARIABLES, *FLASHINFER_VARIABLES):
            raise ValueError(name)
        found[name] = value
    return found


class _Switch(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, option_string == "--enable-flashinfer-autotune")
