"""Bursts on a GPU: calls captured in a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
import torch
from torch import Tensor

from moeguard.backends import registry
from moeguard.backends.protocol import Traits
from moeguard.backends.torch_reference import TorchReference
from moeguard.checks.burst import burst
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.checks.values import values
from moeguard.core.case import Case
from moeguard.core.events import Event, Executed
from moeguard.oracle.sampling import choose_rows

pytestmark = pytest.mark.gpu
CASE = Case.model_validate({"recipe": "bf16", "shape": {"num_tokens": 64, "hidden_size": 256, "intermediate_size": 256,
                                                        "num_experts": 8, "top_k": 2}})


class Baked(TorchReference):
    """Declares that it may be captured; what it does from the third call on is wrong, and a graph holds that for ever."""

    name = "baked"

    def __init__(self) -> None:
        super().__init__()
        self.answer: Tensor | None = None
        self.capturing_is_wrong = True

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(graph_safe=True)

    def run(self, prepared: Any, batch: Any, out: Tensor, **named: Any) -> None:
        if self.answer is None:
            super().run(prepared, batch, out, **named)
            self.answer = out.clone()
            return
        out.copy_(self.answer)
        if self.capturing_is_wrong and torch.cuda.is_current_stream_capturing():
            out[5] = 0


def run(backend: Any, count: int = 20, case: Case = CASE) -> tuple[Session, list[Executed]]:
    events: list[Event] = []
    session = Session(backend, case, Resources("cuda"), emit=events.append)
    values(session)
    assert session.first is not None
    burst(session, session.first, None, "repeat", count=count)
    return session, [event for event in events if isinstance(event, Executed)]


def test_a_healthy_graph_is_right_each_time() -> None:
    session, executed = run(registry.get("triton"))
    assert not session.findings
    assert (executed[-1].role, executed[-1].outcome, executed[-1].count) == ("graph replay", "ok", 20)


def test_a_graph_that_differs_from_the_eager_call_is_found() -> None:
    session, executed = run(Baked())
    (finding,) = session.findings
    assert finding.kind == "graph_mismatch" and finding.numbers["flagged"] == 19
    assert sum(event.count for event in executed if event.outcome == "finding") == 19


def test_the_same_backend_without_the_defect_is_clean() -> None:
    backend = Baked()
    backend.capturing_is_wrong = False
    assert not run(backend)[0].findings


def test_a_large_batch_is_replayed_and_compared_in_rows_that_the_oracle_does_not_see() -> None:
    large = CASE.with_(shape={"num_tokens": 2100})
    session, executed = run(registry.get("triton"), case=large)
    assert not session.findings and (executed[-1].role, executed[-1].outcome) == ("graph replay", "ok")
    seed = next(seed for seed in range(99) if 5 not in choose_rows(session.resources.problem(large.with_(seed=seed))).tolist())
    session, _ = run(Baked(), case=large.with_(seed=seed))
    assert [finding.kind for finding in session.findings] == ["graph_mismatch"]
