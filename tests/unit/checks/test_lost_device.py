"""Errors of the device that are told after the call."""

from __future__ import annotations

import pytest
import torch

import moeguard as mg
from moeguard.backends.routers.torch_routers import TorchScores
from moeguard.backends.torch_reference import TorchReference
from moeguard.checks.lost_device import settle
from moeguard.core.case import Case
from moeguard.core.router import RouterCase

CASE = Case.model_validate({"shape": {"num_tokens": 8, "hidden_size": 64, "intermediate_size": 64, "num_experts": 4, "top_k": 2}})


def failed(device: object) -> None:
    raise RuntimeError("CUDA error: invalid argument")


def test_they_are_the_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeguard.checks.session.settle", failed)
    findings = mg.check(TorchReference(), CASE).findings
    assert [(one.kind, one.sentence) for one in findings] == [
        ("crash", "run raised RuntimeError: CUDA error: invalid argument")]


def test_they_are_the_routers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeguard.checks.router.settle", failed)
    case = RouterCase(method="grouped_topk", num_tokens=8, num_experts=16, top_k=4, num_groups=4, topk_groups=2)
    findings = mg.check_router(TorchScores(), case).findings
    assert [(one.kind, one.rule) for one in findings] == [("crash", "exception")]


def test_a_failed_launch_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of torch's own, which tells of launches before it, and then a wait."""
    done: list[str] = []
    monkeypatch.setattr(torch, "ones", lambda size, device: done.append(f"kernel on {device}"))
    monkeypatch.setattr("torch.cuda.synchronize", lambda: done.append("wait"))
    settle("cpu")
    settle("cuda")
    assert done == ["kernel on cuda", "wait"]
