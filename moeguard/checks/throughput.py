"""Throughput: how many checked executions a second a burst makes, beside the bare calls."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from moeguard.checks.burst import burst
from moeguard.checks.raised import ScenarioAborted
from moeguard.checks.session import Execution, Session
from moeguard.checks.tactics import force, offered_by
from moeguard.checks.values import values
from moeguard.core.case import Case

#: Tactics that the executions are spread over, at most.
TACTICS = 40


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of one backend on one case. seconds: of ``executions`` checked ones, launches and checks included; bare_seconds: of as
    many calls without checks, launched one by one. reason: why nothing was measured, or what was found."""

    tactics: int = 0
    executions: int = 0
    seconds: float = 0.0
    bare_seconds: float = 0.0
    reason: str = ""


def cases(device: str, recipe: str, seed: int) -> list[tuple[str, Case]]:
    """What is measured on a device, with a label: on a GPU ``S``, a small layer, and ``EP8``, an expert-parallel rank of
    DeepSeek-V3; on a CPU ``XS``."""
    def one(tokens: int, hidden: int, intermediate: int, experts: int, top_k: int, ranks: int = 1) -> Case:
        shape = {"num_tokens": tokens, "hidden_size": hidden, "intermediate_size": intermediate, "num_experts": experts,
                 "top_k": top_k}
        return Case.model_validate({"shape": shape, "recipe": recipe, "seed": seed, "parallel": {"ep_size": ranks}})

    if device == "cpu":
        return [("XS", one(16, 128, 128, 8, 2))]
    return [("S", one(128, 1024, 512, 32, 4)), ("EP8", one(4096, 7168, 2048, 256, 8, 8))]


def throughput(session: Session, executions: int) -> Throughput:
    """About ``executions`` checked ones, spread over the tactics that the backend offers. Never raises for what it does."""
    try:
        support = session.support(session.case)
        if not support.supported:
            return Throughput(reason=support.reason or "the backend does not support the case")
        values(session)
        runs = _right(session)
        if not runs:
            return Throughput(reason="no answer was right")
        each, before = max(2, executions // len(runs)), session.executions
        measured = [_measure(session, run, tactic, each) for tactic, run in runs]
    except ScenarioAborted:
        return Throughput(reason=session.findings[-1].sentence if session.findings else session.notes[-1].reason)
    found = session.findings[0].sentence if session.findings else ""
    made = session.executions - before
    if made != each * len(runs):
        return Throughput(reason=found or "not every tactic could be executed in a row")
    return Throughput(len(runs), made, sum(one[0] for one in measured), sum(one[1] for one in measured), found)


def _right(session: Session) -> list[tuple[Hashable | None, Execution]]:
    """The default and offered tactics with a right answer; what is called first is compiled here, not while time is taken."""
    assert session.first is not None
    offered: Sequence[Hashable] = offered_by(session)
    step = max(1, len(offered) // (TACTICS - 1))
    runs: list[tuple[Hashable | None, Execution]] = [(None, session.first)]
    runs += [(tactic, force(session, tactic, "tactics", "bad_tactic")[0]) for tactic in offered[::step][: TACTICS - 1]]
    for tactic, run in runs:
        burst(session, run, tactic, "tactics", count=2)
    return [(tactic, run) for tactic, run in runs if run.ok]


def _measure(session: Session, run: Execution, tactic: Hashable | None, count: int) -> tuple[float, float]:
    """Seconds of ``count`` checked executions and of as many bare calls."""
    problem, prepared = session.base.problem, session.base.prepared
    out = torch.empty(problem.output_shape, dtype=problem.output_dtype, device=problem.device)
    size = session.workspace_bytes(session.base, tactic, "tactics")
    area = torch.empty(size, dtype=torch.uint8, device=problem.device) if size else None

    def bare() -> None:
        for _ in range(count):
            session.backend.run(prepared, problem.batch, out, tactic=tactic, workspace=area)
        if problem.device.type == "cuda":
            torch.cuda.synchronize()

    start = time.perf_counter()
    burst(session, run, tactic, "tactics", count=count)
    between = time.perf_counter()
    session.guarded("run (bare)", bare, tactic, "tactics")
    return between - start, time.perf_counter() - between
