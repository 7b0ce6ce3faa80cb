"""What a machine that runs out of something says: no defect of a kernel, unless it asked for more than it declares."""

from __future__ import annotations

import errno
import re

import torch

from moeguard.checks.sentence import plain

#: What says that memory ran out, on the CPU or on a GPU.
OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
#: The same in words, from torch's CPU allocator and from libraries that call CUDA themselves.
_WORDS = re.compile(r"can't allocate memory|not enough memory|out of memory|OUT_OF_MEMORY|cudaErrorMemoryAllocation|bad_alloc")
_ASKED = re.compile(r"tried to allocate ([\d.]+) ?(bytes|KiB|MiB|GiB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
#: What torch may name beyond what was asked for: it takes blocks of up to 20 MiB, and prints two decimals.
_BLOCK, _DECIMALS = 20 << 20, 0.01


def exhausted(error: BaseException) -> str | None:
    """What ran out, ``memory`` or ``disk space``; None when ``error`` says something else."""
    if isinstance(error, OUT_OF_MEMORY) or (isinstance(error, RuntimeError) and _WORDS.search(plain(error))):
        return "memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk space"
    return None


def asked_for(error: BaseException) -> int:
    """Bytes that the failed allocation asked for; 0 when the message does not tell."""
    found = _ASKED.search(plain(error))
    return int(float(found[1]) * _UNITS[found[2].lower()]) if found else 0


def beyond(asked: int, declared: int | None) -> bool:
    """Whether a call asked for more than a declared workspace, by more than torch's rounding. None, 0: nothing is declared."""
    return declared is not None and declared > 0 and asked > declared * (1 + _DECIMALS) + _BLOCK
