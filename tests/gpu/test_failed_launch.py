"""A launch that failed and that nobody asked about, as a kernel with impossible sizes leaves it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

import moeguard as mg
from moeguard.backends.routers.torch_routers import TorchScores
from moeguard.backends.torch_reference import TorchReference
from moeguard.core.case import Case
from moeguard.core.router import RouterCase

pytestmark = pytest.mark.gpu


def leave_an_error() -> None:
    """The runtime that torch has loaded refuses a device that does not exist, and remembers."""
    loaded = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcudart.so" in line)
    assert ctypes.CDLL(loaded).cudaSetDevice(99) != 0


class Fails(TorchReference):
    """Right, but for one launch."""

    name = "fails"

    def run(self, prepared: Any, batch: Any, out: torch.Tensor, *, tactic: Any = None, workspace: Any = None) -> None:
        super().run(prepared, batch, out, tactic=tactic, workspace=workspace)
        leave_an_error()


class FailsToRoute(TorchScores):
    """Right, but for one launch."""

    name = "fails_to_route"

    def route(self, *args: Any) -> None:
        super().route(*args)
        leave_an_error()


def test_it_is_the_backends_crash() -> None:
    case = Case.model_validate({"shape": {"num_tokens": 8, "hidden_size": 64, "intermediate_size": 64, "num_experts": 4,
                                          "top_k": 2}})
    findings = mg.check(Fails(), case, "cuda").findings
    assert [finding.kind for finding in findings] == ["crash"] and "run raised" in findings[0].sentence
    assert mg.check(TorchReference(), case, "cuda").passed


def test_it_is_the_routers_crash() -> None:
    case = RouterCase(method="grouped_topk", num_tokens=8, num_experts=16, top_k=4, num_groups=4, topk_groups=2)
    findings = mg.check_router(FailsToRoute(), case, "cuda").findings
    assert [finding.rule for finding in findings] == ["exception"]
    assert mg.check_router(TorchScores(), case, "cuda").passed
