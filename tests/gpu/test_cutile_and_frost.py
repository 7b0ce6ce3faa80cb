"""The cuTile and Frost runners on a GPU: right by the reference, and close to CUTLASS on the same stored weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moeguard.backends import registry
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case

pytestmark = pytest.mark.gpu

RECIPES = {"flashinfer_cutile": ("bf16", "fp8_per_tensor", "mxfp4_bf16"),
           "flashinfer_frost": ("bf16", "fp16", "fp8_per_tensor", "fp8_block", "mxfp4_bf16")}
PAIRS = [(backend, recipe) for backend, recipes in RECIPES.items() for recipe in recipes]


def _session(backend: str, recipe: str, **fields: Any) -> Session:
    """A session on four tokens; skipped with the reason where the backend cannot run."""
    found = registry.get(backend).availability()
    if not found.available:
        pytest.skip(found.reason)
    shape = {"num_tokens": 4, "hidden_size": 512, "intermediate_size": 256, "num_experts": 8, "top_k": 2}
    session = Session(registry.get(backend), Case.model_validate({"shape": shape, "recipe": recipe} | fields), Resources("cuda"))
    support = session.support(session.case)
    if not support.supported:
        pytest.skip(support.reason)
    return session


@pytest.mark.parametrize(("backend", "recipe"), PAIRS)
def test_default_and_two_tactics_are_right(backend: str, recipe: str) -> None:
    session = _session(backend, recipe)
    tactics = session.backend.tactics(session.base.prepared, session.base.problem.batch)
    assert len(tactics) > 1
    for tactic in (None, tactics[1], tactics[-1]):
        done = session.execute("values", "base", tactic=tactic)
        assert done.ok, (tactic, done.judgement)
    assert not session.findings


@pytest.mark.parametrize(("backend", "recipe"), PAIRS)
def test_cutlass_agrees_on_the_same_weights(backend: str, recipe: str) -> None:
    outs = []
    for one in (backend, "flashinfer_cutlass"):
        session = _session(one, recipe)
        problem = session.base.problem
        out = torch.empty(problem.output_shape, dtype=problem.output_dtype, device="cuda")
        session.backend.run(session.base.prepared, problem.batch, out)
        outs.append(out.float())
    # e4m3 intermediates on one side alone: 2**-4 of a value, less in a sum over I
    assert (outs[0] - outs[1]).norm() <= (0.04 if "fp8" in recipe else 0.01) * outs[1].norm()
