"""The two CuteDSL dataflows on the same cases: the healthy pair agrees on all, and each planted defect is found and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from moeguard.backends.emulated_cutedsl.batched import EmulatedCuteDslBatched
from moeguard.backends.emulated_cutedsl.standard import EmulatedCuteDsl
from moeguard.backends.protocol import Backend
from moeguard.checks.side_by_side import side_by_side
from moeguard.checks.subject import Resources
from moeguard.core.case import PROBES, Case
from moeguard.core.recipe import RECIPES
from moeguard.fuzz.generation import draw_round
from moeguard.fuzz.profiles import Budget, Profile
from moeguard.mutants.broken_cutedsl import BROKEN_CUTEDSL

TINY = Profile("tiny", 33, 16, 128, 128, Budget(1 << 19, 1 << 18, 1 << 13), 128)
STANDARD, BATCHED = EmulatedCuteDsl(), EmulatedCuteDslBatched()
#: What every fifth case is made: loads that differ most, expert-parallel shards, the batched format.
STRATA = ({"kind": "one_expert"}, {"kind": "empty_experts"}, {"kind": "balanced"})


def cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Drawn cases, of which three fifths get a routing of STRATA, a fifth is a shard, and a fifth has the batched format."""
    number = 0
    while True:
        for place, case in enumerate(draw_round(TINY, tuple(RECIPES), seed, number)):
            if count == 0:
                return
            count -= 1
            yield changed(case, place)
        number += 1


def changed(case: Case, place: int) -> Case:
    if place % 5 < 3:
        return case.with_(routing=STRATA[place % 5]) if case.routing.kind not in PROBES else case
    if place % 5 == 3:
        ranks = next((size for size in (4, 2) if case.shape.num_experts % size == 0), 1)
        return case.with_(parallel={"ep_size": ranks, "ep_rank": place % ranks})
    ordinary = case.routing.kind not in PROBES and case.parallel.tp_size == 1
    return case.with_(activation_format="batched", layout={"kind": "contiguous"}) if ordinary else case


def partner(kind: type[Backend]) -> Backend:
    """The healthy backend of the other dataflow."""
    return STANDARD if issubclass(kind, EmulatedCuteDslBatched) else BATCHED


def compare_all(count: int) -> Counter[str]:
    """Compare the healthy pair on ``count`` cases, and each mutant with its partner until it is found. What they held."""
    resources, seen, hidden = Resources(), Counter[str](), [kind() for kind in BROKEN_CUTEDSL]
    for number, case in enumerate(cases(count)):
        if number % 32 == 0:
            resources.release()
        healthy = side_by_side(STANDARD, BATCHED, case, resources)
        assert not healthy.wrong, (healthy.sides, case.to_json(indent=None))
        seen[healthy.outcome] += 1
        if healthy.outcome != "agree":
            assert all(side.standing == "unjudged" for side in healthy.sides)
            continue
        assert healthy.distance is not None and healthy.distance.share <= 1
        seen.update(held(case, resources))
        for mutant in tuple(hidden):
            found = side_by_side(mutant, partner(type(mutant)), case, resources)
            assert set(found.wrong) <= {mutant.name}
            if {one.kind for one in found.sides[0].findings} & mutant.expected:
                hidden.remove(mutant)
    assert [mutant.name for mutant in hidden] == []
    return seen


def held(case: Case, resources: Resources) -> Iterator[str]:
    """What is special about the case."""
    problem = resources.problem(case.with_(activation_format="batched"))
    counts = problem.batch.expert_num_tokens
    assert counts is not None
    most = int(counts.max())
    if case.activation_format == "batched":
        yield "batched"
    if case.parallel.ep_size > 1:
        yield "shard"
    if int(counts.min()) == 0:
        yield "empty expert"
    if case.experts_local > 1 and most == int(counts.sum()) > 0:
        yield "all rows at one expert"
    if case.experts_local > 1 and int(counts.min()) == most:
        yield "every expert full"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_five_hundred_cases() -> None:
    seen = compare_all(500)
    assert seen["agree"] >= 450
    for what in ("batched", "shard", "empty expert", "all rows at one expert", "every expert full"):
        assert seen[what] >= 10, seen


@pytest.mark.soak
def test_five_thousand_cases() -> None:
    assert compare_all(5000)["agree"] >= 4500
