"""Findings, cells and recipes as values."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from moeguard.core.case import Case
from moeguard.core.cell import Cell
from moeguard.core.finding import KINDS, Finding
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES
from moeguard.core.verdict import Verdict

CASE = Case.model_validate({"shape": dict(num_tokens=3, hidden_size=8, intermediate_size=8, num_experts=2, top_k=1)})
FINDING = Finding(kind="mismatch", check="values", backend="mine", case=CASE, sentence="Wrong.", numbers={"max_z": 9.5})


def test_round_trip() -> None:
    assert Finding.model_validate(FINDING.model_dump(mode="json", by_alias=True)) == FINDING


def test_identity_is_the_defect_and_not_the_case_or_the_check() -> None:
    assert FINDING.fingerprint == "75decdb7883d"
    same = FINDING.model_copy(update={"check": "repeat", "case": CASE.with_(seed=9), "sentence": "Other words.", "numbers": {},
                                      "reproduced": True})
    assert same.fingerprint == FINDING.fingerprint
    for change in ({"kind": "crash"}, {"backend": "other"}, {"tactic": "(1, 2)"}, {"case": CASE.with_(recipe="fp16")}):
        assert FINDING.model_copy(update=change).fingerprint != FINDING.fingerprint


def test_kinds_are_a_closed_set() -> None:
    assert len(KINDS) == len(set(KINDS)) == 23
    with pytest.raises(ValidationError):
        Finding(kind="nope", check="values", backend="mine", case=CASE, sentence="")  # type: ignore[arg-type]


def test_cell_of_an_environment() -> None:
    environment = {"arch": "sm90", "cuda": "13.0", "driver": "580", "packages": {"torch": "2.13.0", "flashinfer-python": None}}
    assert Cell.of("mine", "bf16", environment) == Cell("mine", "bf16", "sm90", None, "13.0", "580", "2.13.0")


def test_verdict_passes_only_when_something_ran() -> None:
    assert not Verdict().passed
    assert Verdict(executions=1).passed
    assert not Verdict((FINDING,), executions=1).passed


def test_every_recipe_of_the_case_format_is_built() -> None:
    names = Case.model_fields["recipe"].annotation.__args__  # type: ignore[union-attr]
    assert set(names) == set(RECIPES)
    for name in RECIPES:
        assert Numerics.of(name) == RECIPES[name].numerics


@pytest.mark.parametrize("field", ["input", "intermediate", "expert_output", "accumulate", "combine"])
def test_unknown_rounding_points(field: str) -> None:
    with pytest.raises(ValueError, match=f"numerics.{field}: .*'nope'; allowed: "):
        Numerics(**{field: "nope"})


def test_finer_variants_differ_from_the_declaration() -> None:
    declared = Numerics(intermediate="bf16+e4m3_1x128", expert_output="bf16", combine="bf16")
    assert declared not in declared.finer_variants()
    assert Numerics(intermediate="e4m3_1x128", expert_output="bf16", combine="bf16") in declared.finer_variants()
