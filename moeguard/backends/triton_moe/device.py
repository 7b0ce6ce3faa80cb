"""Where the kernels can run: compiled on a CUDA device, or in Triton's interpreter on a CPU."""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache

import torch

from moeguard.backends.protocol import Availability

#: Value that the interpreter is asked for with.
INTERPRET = "TRITON_INTERPRET"
#: Least compute capability: of bf16 tensor cores, of e4m3 conversions, of wgmma, and of e4m3 sums in full float32.
AMPERE, ADA, HOPPER, BLACKWELL = (8, 0), (8, 9), (9, 0), (10, 0)


def installed() -> bool:
    """Whether triton can be imported; does not import it."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether kernels run in the interpreter: decided by TRITON_INTERPRET when triton is imported."""
    return os.environ.get(INTERPRET, "").lower() in ("1", "true", "on", "yes", "y")


@lru_cache(maxsize=1)
def capability() -> tuple[int, int] | None:
    """Compute capability of the current CUDA device, or None without one."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return None
    return torch.cuda.get_device_capability()


@lru_cache(maxsize=1)
def shared_memory() -> int:
    """Bytes of shared memory that one block of threads may ask for; unlimited without a CUDA device."""
    if capability() is None:
        return 1 << 62
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return int(getattr(properties, "shared_memory_per_block_optin", 99 << 10))


def availability() -> Availability:
    """Yes with a CUDA device of compute capability 8.0 or in the interpreter; else no, with what to do."""
    if not installed():
        return Availability.no("triton is not installed (pip install triton)")
    if interpreted():
        return Availability.yes()
    found = capability()
    if found is None:
        return Availability.no(f"no CUDA device; set {INTERPRET}=1 to run small cases in Triton's interpreter on the CPU")
    if found < AMPERE:
        return Availability.no(f"compute capability {found[0]}.{found[1]}; needs 8.0 or later")
    return Availability.yes()
