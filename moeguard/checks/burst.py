"""A burst: one call many times in a row, each execution poisoned, guarded and judged on the device, which is waited for once.

Where the backend declares that a CUDA graph may hold the call, the executions are replays of one, as serving engines make
them. A race shows among many executions, and a defect of captured calls shows in none else.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeguard.checks.burst_verdict import PLACES, verdict
from moeguard.checks.session import Execution, Session
from moeguard.core.case import Case
from moeguard.core.finding import Kind
from moeguard.oracle.quick import SHARES, QuickJudge

#: Executions of a burst, at least and at most, and the seconds that one is meant to take on a GPU.
FEWEST, MOST, SECONDS = 2, 64, 0.01
#: What a GPU surely does in a second: bytes that it reads, multiplications that a slow tactic does; and seconds of any call.
_BYTES, _PRODUCTS, _CALL = 2e12, 4e13, 5e-5
#: Bytes that torch may hold on to: the memory of a graph is not used again, and other workers need it.
_HOARD = 2 << 30
#: Executions in which a burst's deviation is looked for again, eagerly and with every check.
ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """What the device said of each execution, float32 [N, len(PLACES) + len(SHARES)]; replayed: those from a graph, [N]."""

    rows: Tensor
    replayed: Tensor
    seconds: float

    def deviations(self, *, deterministic: bool, judged: bool) -> Tensor:
        """The rows without what is as it should be: 0 wherever nothing is wrong.

        A finite pattern may be a right value, so what kept it counts only if a NaN pattern was kept somewhere too. The bits of
        the first answer were judged, whatever their shares; other bits count where they must not differ, and their shares
        where that answer was right by these rules (judged), not excused.
        """
        rows = self.rows.clone()
        unwritten, bits, shares = rows[:, PLACES.index("unwritten")], rows[:, PLACES.index("bits")], rows[:, len(PLACES):]
        if not bool((unwritten[::2] > 0).any()):
            unwritten.zero_()
        shares[(bits == 0) | (not judged)] = 0
        shares[shares <= 1] = 0
        if not deterministic:
            bits.zero_()
        return rows.nan_to_num(nan=torch.inf)


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
    numerics = session.numerics(session.case, tactic)
    judge = base.judge(numerics)
    if not QuickJudge.fits(judge):
        return
    traits = session.traits(tactic)
    stage = _Stage(session, base.quick_judge(numerics), run, tactic, check, planned(session.case) if count is None else count)
    measured = stage.measure(captured=cuda and traits.graph_safe)
    if cuda and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > _HOARD:
        torch.cuda.empty_cache()
    rows = measured.deviations(deterministic=traits.deterministic, judged=run.judgement.passed)
    flagged = (rows > 0).any(1)
    role = "graph replay" if bool(measured.replayed.any()) else "in a row"
    numbers = {"elements": judge.judged} if judge.reference.exact else {
        "elements": judge.judged, "tau": (tau := judge.limits.element(judge.judged)),
        "max_z": float(measured.rows[:, len(PLACES) + SHARES.index("element")].max()) * tau}
    wrong = int(flagged.sum())
    for outcome, number in (("ok", len(flagged) - wrong), ("finding", wrong)):
        if number:
            session.executed(check, role, tactic, outcome, measured.seconds * number / len(flagged), numbers, number)
    if wrong:
        stage.restore()
        _conclude(session, run, tactic, check, measured, rows)


class _Stage:
    """One call and its verdicts, many times, without waiting for the device."""

    def __init__(self, session: Session, judge: QuickJudge, run: Execution, tactic: Hashable | None, check: str,
                 count: int) -> None:
        self._session, self._tactic, self._check, self._count = session, tactic, check, count
        size = session.workspace_bytes(session.base, tactic, check)
        self._verdict = verdict(session.base.problem, judge, run.answer, size, count)

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
        rows = self._guarded("run (in a row)", self._verdict.rows.cpu)
        return Measured(rows, replayed, time.perf_counter() - start)

    def restore(self) -> None:
        """Give the inputs their values back."""
        self._verdict.inputs.restore()

    def _capture(self) -> None:
        """The first execution, then replays. torch.cuda.graph would first collect garbage and empty torch's cache."""
        stream, graph = torch.cuda.Stream(self._verdict.place.device), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())

        def capture() -> None:
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._one()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # what the backend raised is told, not that the capture was broken off
                    graph.capture_end()
                raise
            graph.capture_end()

        def replays() -> None:
            for _ in range(self._count - 1):
                graph.replay()

        with torch.cuda.stream(stream):
            self._guarded("run (before capture)", self._one)
            self._guarded("run (captured in a CUDA graph)", capture)
            self._guarded("run (replayed from a CUDA graph)", replays)
            self._guarded("run (replayed from a CUDA graph)", stream.synchronize)

    def _guarded(self, what: str, call: Callable[[], Any]) -> Any:
        return self._session.guarded(what, call, self._tactic, self._check)

    def _one(self) -> None:
        out, area = self._verdict.poison()
        base = self._session.base
        self._session.backend.run(base.prepared, base.problem.batch, out, tactic=self._tactic, workspace=area)
        self._verdict.record()


def _conclude(session: Session, run: Execution, tactic: Hashable | None, check: str, measured: Measured,
              rows: Tensor) -> None:
    """Look for the deviation once more, eagerly; what does not come back is a race, or belongs to the graph."""
    flagged = (rows > 0).any(1)
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
    numbers: dict[str, Any] = {name: float(value) for name, value in zip((*PLACES, *SHARES), rows[first], strict=True)}
    numbers |= {"flagged": int(flagged.sum()), "executions": len(flagged)}
    kind, what = _seen(numbers, graph)
    some = "every replay of a CUDA graph" if graph else f"{numbers['flagged']} of {numbers['executions']} equal calls in a row"
    session.report(kind, check, tactic, f"{some} {what}", numbers)


def _seen(numbers: dict[str, Any], graph: bool) -> tuple[Kind, str]:
    """Kind and predicate of what was seen in the first flagged execution and did not come back."""
    seen = ("writes outside of the output or the workspace" if numbers["guards"] else "changes an input" if numbers["inputs"]
            else "leaves elements unwritten" if numbers["unwritten"] else "is answered wrongly, or not as the first")
    if graph:
        return "graph_mismatch", f"{seen}; the eager call does not"
    kinds: dict[str, Kind] = {"guards": "out_of_bounds_write", "inputs": "input_mutated", "unwritten": "unwritten_output"}
    return next((kind for name, kind in kinds.items() if numbers[name]), "nondeterministic"), f"show one that {seen}"
