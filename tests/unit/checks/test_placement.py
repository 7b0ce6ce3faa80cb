"""Layout contracts of a backend are examined before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from torch import Tensor

import moeguard as mg
from moeguard.backends.torch_reference import TorchReference
from moeguard.checks.placement import placement
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.layouts.contract import Probe
from moeguard.layouts.scales import SWIZZLED_128X4

SHAPE = {"num_tokens": 4, "hidden_size": 16, "intermediate_size": 16, "num_experts": 2, "top_k": 1}
CASE = Case.model_validate({"shape": SHAPE})


class Probed(TorchReference):
    """Counts its runs."""

    name = "probed"

    def __init__(self, probes: Any) -> None:
        self.probes, self.runs = probes, 0

    def layout_probes(self, case: Case) -> Mapping[str, Probe]:
        return self.probes  # type: ignore[no-any-return]

    def run(self, *args: Any, **named: Any) -> None:
        self.runs += 1
        super().run(*args, **named)


def _late(scale: Tensor) -> Tensor:
    moved = scale.clone()
    moved[:, [3, 35]] = scale[:, [35, 3]]
    return SWIZZLED_128X4.place(moved)


def test_a_moved_element_is_found_before_anything_runs() -> None:
    backend = Probed({"scale swizzle": Probe(SWIZZLED_128X4, _late, (1, 128, 4))})
    verdict = mg.check(backend, CASE)
    (finding,) = verdict.findings
    assert finding.kind == "layout_contract"
    assert finding.sentence.startswith(
        "scale swizzle: layout 'scales swizzled in tiles of 128x4': the first element that moved is (0, 3, 0), whose place is "
        "48: element (0, 35, 0) lies there, and it is at 52; 8 of 512 elements moved")
    assert finding.numbers["element"] == [0, 3, 0]
    assert backend.runs == 0 and verdict.executions == 0


def test_a_layout_that_is_kept_costs_nothing_but_the_look() -> None:
    backend = Probed({"scale swizzle": Probe(SWIZZLED_128X4, SWIZZLED_128X4.place, (1, 128, 4))})
    assert mg.check(backend, CASE).passed and backend.runs


@pytest.mark.parametrize("probes", [None, [SWIZZLED_128X4], {"swizzle": SWIZZLED_128X4}])
def test_anything_but_probes_is_a_crash(probes: Any) -> None:
    (finding,) = mg.check(Probed(probes), CASE).findings
    assert finding.kind == "crash" and finding.sentence.startswith("layout_probes raised TypeError: returned ")


def test_a_helper_that_raises_is_a_crash() -> None:
    def refuse(scale: Tensor) -> Tensor:
        raise ValueError("rows must be divisible by 128")

    (finding,) = mg.check(Probed({"swizzle": Probe(SWIZZLED_128X4, refuse, (1, 100, 4))}), CASE).findings
    assert finding.kind == "crash"
    assert "layout_probes: swizzle raised ValueError: rows must be divisible by 128" in finding.sentence


def test_layouts_are_examined_once_for_cases_that_are_prepared_alike_and_reported_for_each() -> None:
    looks: list[int] = []

    def count(scale: Tensor) -> Tensor:
        looks.append(1)
        return _late(scale)

    backend = Probed({"scale swizzle": Probe(SWIZZLED_128X4, count, (1, 128, 4))})
    resources, sentences = Resources(), []
    for changes in ({}, {"seed": 5}, {"routing": {"kind": "skewed"}}, {"shape": {"num_tokens": 7}}):
        session = Session(backend, CASE.with_(**changes), resources)
        assert not placement(session)
        sentences += [finding.sentence for finding in session.findings]
    assert len(sentences) == 4 and len(set(sentences)) == 1
    once = len(looks)
    assert not placement(Session(backend, CASE.with_(layout={"kind": "noncontiguous"}), resources)) and len(looks) == 2 * once
