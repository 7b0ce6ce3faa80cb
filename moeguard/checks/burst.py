"""A burst: one call many times in a row, each execution poisoned, guarded and judged on the device, which is waited for once.

Where the backend declares that a CUDA graph may hold the call, the executions are replays of one, as serving engines make
them. A race shows among many executions, and a defect of captured calls shows in none else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeguard.checks.session import Execution, Session
from moeguard.core.case import Case
from moeguard.core.finding import Kind
from moeguard.memory import poison
from moeguard.memory.buffers import OutputBuffer, Workspace
from moeguard.memory.digest import Snapshot
from moeguard.oracle.quick import SHARES, QuickJudge

#: Executions of a burst, at least and at most, and the seconds that one is meant to take on a GPU.
FEWEST, MOST, SECONDS = 2, 64, 0.01
#: What a GPU surely does in a second: bytes that it reads, multiplications that a slow tactic does; and seconds of any call.
_BYTES, _PRODUCTS, _CALL = 2e12, 4e13, 5e-5
#: Columns of a measured execution.
_PLACES = ("guards", "unwritten", "inputs", "bits")
#: Executions in which a burst's deviation is looked for again, eagerly and with every check.
ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """What the device said of each execution, float32 [N, len(_PLACES) + len(SHARES)]; replayed: those from a graph, [N]."""

    rows: Tensor
    replayed: Tensor
    seconds: float

    def flagged(self, *, deterministic: bool) -> Tensor:
        """Bool [N]: executions with anything that is not as it should be.

        A finite pattern may be a right value, so what kept it counts only if a NaN pattern was kept somewhere too.
        """
        rows = self.rows.clone()
        unwritten = rows[:, 1]
        if not bool((unwritten[::2] > 0).any()):
            rows[:, 1] = 0
        if not deterministic:
            rows[:, 3] = 0
        places, shares = rows[:, :len(_PLACES)], rows[:, len(_PLACES):]
        return (places > 0).any(1) | ~(shares <= 1).all(1)


def planned(case: Case) -> int:
    """Executions of a burst of ``case``, from its size alone."""
    shape, inter = case.shape, case.intermediate_local
    area = 3 * shape.hidden_size * inter
    slots = shape.num_tokens * shape.top_k
    seconds = _CALL + 2 * min(case.experts_local, slots) * area / _BYTES + slots * area / _PRODUCTS / case.parallel.ep_size
    return int(max(FEWEST, min(MOST, SECONDS / seconds)))


def burst(session: Session, run: Execution, tactic: Hashable | None, check: str, *, count: int | None = None) -> None:
    """Execute the call of ``run``, a right answer, ``count`` times more; planned(case) by default, and on a GPU alone."""
    base = session.base
    cuda = base.problem.device.type == "cuda"
    if not (run.ok and run.whole and run.refused is None) or (count is None and not cuda):
        return
    judge = base.judge(session.numerics(session.case, tactic))
    if not QuickJudge.fits(judge):
        return
    traits = session.traits(tactic)
    stage = _Stage(session, QuickJudge(judge), run, tactic, check, planned(session.case) if count is None else count)
    measured = stage.measure(captured=cuda and traits.graph_safe)
    flagged = measured.flagged(deterministic=traits.deterministic)
    role = "graph replay" if bool(measured.replayed.any()) else "in a row"
    numbers = {"elements": judge.judged} if judge.reference.exact else {
        "elements": judge.judged, "tau": (tau := judge.limits.element(judge.judged)),
        "max_z": float(measured.rows[:, len(_PLACES) + SHARES.index("element")].max()) * tau}
    wrong = int(flagged.sum())
    for outcome, number in (("ok", len(flagged) - wrong), ("finding", wrong)):
        if number:
            session.executed(check, role, tactic, outcome, measured.seconds * number / len(flagged), numbers, number)
    if wrong:
        stage.restore()
        _conclude(session, run, tactic, check, measured, flagged)


class _Stage:
    """Buffers of a burst, and what is done for one execution without waiting for the device."""

    def __init__(self, session: Session, judge: QuickJudge, run: Execution, tactic: Hashable | None, check: str,
                 count: int) -> None:
        problem = session.base.problem
        device, padding = problem.device, problem.row_padding
        self._session, self._judge, self._run, self._tactic, self._check, self._count = session, judge, run, tactic, check, count
        self._problem = problem
        self._out = OutputBuffer(problem.output_shape, problem.output_dtype, padding, device)
        size = session.workspace_bytes(session.base, tactic, check)
        self._area = Workspace(size, device) if size else None
        self._inputs = Snapshot(problem.batch.tensors())
        words = [poison.word(problem.output_dtype, number) for number in range(count)]
        self._words = torch.tensor(words, dtype=torch.int16, device=device)
        self._bytes = torch.tensor([poison.byte(number) for number in range(count)], dtype=torch.uint8, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._rows = torch.zeros(count, len(_PLACES) + len(SHARES), device=device)

    def measure(self, *, captured: bool) -> Measured:
        """Every execution. captured: all but the first are replays of a CUDA graph."""
        replayed = torch.zeros(self._count, dtype=torch.bool)
        start = time.perf_counter()
        if captured:
            self._capture()
            replayed[1:] = True
        else:
            for _ in range(self._count):
                self._guarded("run (in a row)", self._one)
        rows = self._guarded("run (in a row)", self._rows.cpu)
        return Measured(rows, replayed, time.perf_counter() - start)

    def restore(self) -> None:
        """Give the inputs their values back."""
        self._inputs.restore()

    def _capture(self) -> None:
        stream, graph = torch.cuda.Stream(self._problem.device), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())

        def first() -> None:
            with torch.cuda.stream(stream):
                self._one()
            stream.synchronize()

        def capture() -> None:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._one()

        def replays() -> None:
            for _ in range(self._count - 1):
                graph.replay()
            torch.cuda.synchronize()

        self._guarded("run (before capture)", first)
        self._guarded("run (captured in a CUDA graph)", capture)
        self._guarded("run (replayed from a CUDA graph)", replays)

    def _guarded(self, what: str, call: Callable[[], object]) -> Tensor:
        value: Tensor = self._session.guarded(what, call, self._tactic, self._check)
        return value

    def _one(self) -> None:
        problem, place = self._problem, self._place
        out = self._out.poison_with(self._words.index_select(0, place))
        area = None if self._area is None else self._area.poison_with(self._bytes.index_select(0, place))
        self._session.backend.run(self._session.base.prepared, problem.batch, out, tactic=self._tactic, workspace=area)
        answer = self._out.view().reshape(-1, problem.output_shape[-1])
        unwritten, differing = self._out.unwritten(), answer.view(torch.int16) != self._run.answer.view(torch.int16)
        if problem.valid is not None:
            unwritten, differing = unwritten & problem.valid[:, None], differing & problem.valid[:, None]
        guards = self._out.strayed() if self._area is None else self._out.strayed() + self._area.strayed()
        places = torch.stack([guards, unwritten.sum(), self._inputs.differing(), differing.sum()]).float()
        self._rows.index_copy_(0, place, torch.cat([places, self._judge.measure(answer)])[None])
        place.add_(1)


def _conclude(session: Session, run: Execution, tactic: Hashable | None, check: str, measured: Measured,
              flagged: Tensor) -> None:
    """Look for the deviation once more, eagerly; what does not come back is a race, or belongs to the graph."""
    before, deterministic = len(session.findings), session.traits(tactic).deterministic
    first = int(flagged.nonzero()[0, 0])
    for attempt in range(ATTEMPTS):
        again = session.execute(check, "in a row, again", tactic=tactic, pattern=first + attempt, wrong="nondeterministic")
        if not again.ok or len(session.findings) > before:
            return
        if deterministic and not again.same_bits(run):
            break
    replays = flagged[measured.replayed]
    graph = bool(replays.numel() and replays.all() and not flagged[~measured.replayed].any())
    numbers: dict[str, Any] = {name: float(value) for name, value in zip((*_PLACES, *SHARES), measured.rows[first], strict=True)}
    numbers |= {"flagged": int(flagged.sum()), "executions": len(flagged)}
    kind, what = _verdict(numbers, graph)
    some = "every replay of a CUDA graph" if graph else f"{numbers['flagged']} of {numbers['executions']} equal calls in a row"
    session.report(kind, check, tactic, f"{some} {what}", numbers)


def _verdict(numbers: dict[str, Any], graph: bool) -> tuple[Kind, str]:
    """Kind and predicate of what was seen in the first flagged execution and did not come back."""
    seen = ("writes outside of the output or the workspace" if numbers["guards"] else "changes an input" if numbers["inputs"]
            else "leaves elements unwritten" if numbers["unwritten"] else "is answered wrongly, or not as the first")
    if graph:
        return "graph_mismatch", f"{seen}; the eager call does not"
    kinds: dict[str, Kind] = {"guards": "out_of_bounds_write", "inputs": "input_mutated", "unwritten": "unwritten_output"}
    return next((kind for name, kind in kinds.items() if numbers[name]), "nondeterministic"), f"show one that {seen}"
