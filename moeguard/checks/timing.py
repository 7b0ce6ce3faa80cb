"""Timed calls of a backend: CUDA events on a GPU, a monotonic clock elsewhere. They are neither judged nor counted.

On a GPU each timed call waits in the queue behind a delay that is longer than its launches take on the host, so that the time
is that of the kernels.
"""

from __future__ import annotations

import time
from collections.abc import Hashable

import torch

from moeguard.checks.session import Session
from moeguard.memory.buffers import OutputBuffer, Workspace

#: Calls before timing, timed calls, and seconds after which no further call is timed.
WARM_UP, TIMED, ENOUGH, ENOUGH_CUDA = 1, 5, 1.0, 0.01
#: Seconds of the delay before a timed call, and cycles of a second (a GPU's clock, about).
SHORTEST_DELAY, LONGEST_DELAY, CYCLES = 2e-4, 1e-2, 1.8e9


def time_calls(session: Session, tactic: Hashable | None) -> list[float]:
    """Seconds of each of up to TIMED calls on the session's batch; one at least. An exception is a crash finding."""
    subject = session.base
    problem = subject.problem
    out = OutputBuffer(problem.output_shape, problem.output_dtype, 0, problem.device).poison(0)
    size = session.workspace_bytes(subject, tactic, "tactics")
    area = Workspace(size, problem.device).poison(0) if size else None
    cuda = problem.device.type == "cuda"
    check = "values" if tactic is None else "tactics"

    def call() -> None:
        session.backend.run(subject.prepared, problem.batch, out, tactic=tactic, workspace=area)

    def on_clock() -> float:
        start = time.perf_counter()
        call()  # on a GPU, its launches
        took = time.perf_counter() - start
        if cuda:
            torch.cuda.synchronize()
        return took

    def on_device() -> float:
        torch.cuda._sleep(delay)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    host = min(session.guarded("run (warm-up)", on_clock, tactic, check) for _ in range(WARM_UP))
    delay = int(min(max(2 * host, SHORTEST_DELAY), LONGEST_DELAY) * CYCLES)
    seconds: list[float] = []
    while len(seconds) < TIMED and (not seconds or sum(seconds) < (ENOUGH_CUDA if cuda else ENOUGH)):
        seconds.append(session.guarded("run (timed)", on_device if cuda else on_clock, tactic, check))
    return seconds
