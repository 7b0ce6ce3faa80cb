"""What workers tell of their use, and that they give memory back."""

from __future__ import annotations

import weakref

import pytest
import torch

from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.core.events import Executed, ScenarioFinished, Usage, parse
from moeguard.engine import meter
from moeguard.engine.meter import Meter, give_back, resident_bytes

END = ScenarioFinished(scenario=3, status="clean", executions=5, seconds=0.1)
RUN = Executed(scenario=3, number=5, check="repeat", role="in a row", tactic=None, outcome="ok", seconds=0.1, count=5)


def test_use_is_told_at_the_end_of_a_scenario_once_some_seconds_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(meter.time, "monotonic", lambda: now[0])
    resources = Resources()
    case = Case.model_validate({"shape": dict(num_tokens=3, hidden_size=16, intermediate_size=8, num_experts=4, top_k=2)})
    for seed in (0, 0, 4):  # the same weights each time
        resources.bank.get(case.with_(seed=seed))
    gauge = Meter("cpu", resources)
    assert list(gauge.with_usage(RUN)) == [RUN]
    assert list(gauge.with_usage(END)) == [END]
    now[0] += 10.0
    assert list(gauge.with_usage(RUN)) == [RUN]  # in the middle of a scenario
    used, end = gauge.with_usage(END)
    assert isinstance(used, Usage) and end == END
    assert (used.scenarios, used.executions, used.seconds, used.gpu_reserved) == (2, 10, 10.0, None)
    assert used.resident == pytest.approx(resident_bytes(), rel=0.2)
    assert used.bank == {"weights_hits": 2, "weights_misses": 1, "weights_bytes": 3 * 4 * 16 * 8 * 2,
                         "prepared_hits": 0, "prepared_misses": 0, "prepared_bytes": 0}
    assert parse(used.to_json()) == used
    assert list(gauge.with_usage(END)) == [END]


def test_memory_between_what_is_still_held_goes_back_to_the_system() -> None:
    before = resident_bytes()
    assert before is not None
    tensors = [torch.ones(16_000) for _ in range(2000)]  # 128 MB, each below what the system gets back of itself
    held = tensors[::50]
    del tensors
    give_back()
    after = resident_bytes()
    assert after is not None and after - before < 32 << 20 and len(held) == 40


def test_what_only_a_cycle_holds_goes_too(no_collector: None) -> None:
    """Backends are free to leave cycles behind, and Python alone would keep some for minutes."""
    class Node:
        def __init__(self) -> None:
            self.itself, self.tensor = self, torch.ones(8)

    watched = weakref.ref(Node())
    assert watched() is not None
    give_back()
    assert watched() is None


@pytest.mark.parametrize("started", [True, False])
def test_so_does_what_the_cache_of_a_gpu_holds_but_no_context_is_made_for_that(
        started: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    give_back()
    assert emptied == [True] * started
