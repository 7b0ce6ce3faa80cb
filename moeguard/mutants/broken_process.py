"""Mutants that raise, hang, or take their process down."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import ClassVar

from torch import Tensor

from moeguard.core.case import Case
from moeguard.mutants.base import Call, Mutant, Prepared, Trigger
from moeguard.tensors.operand import Batch, Weights

CRASH = frozenset({"crash"})


class Raises(Mutant):
    """Raises on every supported call."""

    name = "mutant_raises"
    expected: ClassVar[frozenset[str]] = CRASH

    def compute(self, call: Call) -> Tensor:
        raise RuntimeError("illegal memory access was encountered")


class RaisesForOneToken(Mutant):
    """The profile for one token has no kernel (flashinfer#4157)."""

    name = "mutant_raises_for_one_token"
    expected: ClassVar[frozenset[str]] = CRASH
    trigger: ClassVar[Trigger] = {"shape": {"num_tokens": 1}}

    def compute(self, call: Call) -> Tensor:
        if call.ids.shape[0] == 1:
            raise ValueError("M must be at least 2")
        return super().compute(call)


class PrepareRaises(Mutant):
    """Preparing weights asserts an alignment that ``supports`` does not mention (vllm#48541 class)."""

    name = "mutant_prepare_raises"
    expected: ClassVar[frozenset[str]] = CRASH
    trigger: ClassVar[Trigger] = {"shape": {"intermediate_size": 72}}

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        assert weights.gate.data.shape[1] % 16 == 0, "intermediate size must be a multiple of 16"
        return super().prepare(weights, case)


class TacticsRaise(Mutant):
    """Listing tactics fails (flashinfer#2916)."""

    name = "mutant_tactics_raise"
    expected: ClassVar[frozenset[str]] = CRASH

    def tactics(self, prepared: Prepared, batch: Batch) -> tuple[str, ...]:
        raise AttributeError("'NoneType' object has no attribute 'shape'")


class Hangs(Mutant):
    """Never returns: a barrier that not all blocks reach (flashinfer#4192)."""

    name = "mutant_hangs"
    expected: ClassVar[frozenset[str]] = frozenset({"hang"})
    isolated: ClassVar[bool] = True

    def compute(self, call: Call) -> Tensor:
        while True:
            time.sleep(0.05)


class Exits(Mutant):
    """Ends the process at once, without clean-up."""

    name = "mutant_exits"
    expected: ClassVar[frozenset[str]] = CRASH
    isolated: ClassVar[bool] = True

    def compute(self, call: Call) -> Tensor:
        os._exit(3)


class RaisesSystemExit(Mutant):
    """Calls ``sys.exit`` inside the kernel's host code."""

    name = "mutant_raises_system_exit"
    expected: ClassVar[frozenset[str]] = CRASH
    isolated: ClassVar[bool] = True

    def compute(self, call: Call) -> Tensor:
        sys.exit("unsupported architecture")


class Segfaults(Mutant):
    """Reads address zero (flashinfer#3332)."""

    name = "mutant_segfaults"
    expected: ClassVar[frozenset[str]] = CRASH
    isolated: ClassVar[bool] = True

    def compute(self, call: Call) -> Tensor:
        ctypes.string_at(0)
        return super().compute(call)


class Aborts(Mutant):
    """Fails a C++ assertion that ends in ``abort``."""

    name = "mutant_aborts"
    expected: ClassVar[frozenset[str]] = CRASH
    isolated: ClassVar[bool] = True

    def compute(self, call: Call) -> Tensor:
        os.abort()


BROKEN_PROCESS: tuple[type[Mutant], ...] = (
    Raises, RaisesForOneToken, PrepareRaises, TacticsRaise, Hangs, Exits, RaisesSystemExit, Segfaults, Aborts)
