"""Conditions as data: what they mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from moeguard.core.case import Case
from moeguard.ledger.condition import Condition, case_values

CASE = Case.model_validate({
    "shape": {"num_tokens": 300, "hidden_size": 64, "intermediate_size": 32, "num_experts": 8, "top_k": 2},
    "routing": {"kind": "duplicate_ids"}, "parallel": {"ep_size": 2, "ep_rank": 1}, "weights": {"bias": True}})


@pytest.mark.parametrize(("clause", "holds"), [
    ({"field": "routing.kind", "equals": "duplicate_ids"}, True),
    ({"field": "routing.kind", "in": ["nan_logits", "uniform"]}, False),
    ({"field": "shape.top_k", "not_in": [1, 4, 6]}, True),
    ({"field": "shape.top_k", "not_in": [1, 2]}, False),
    ({"field": "shape.num_tokens", "at_least": 300}, True),
    ({"field": "shape.num_tokens", "at_most": 299}, False),
    ({"field": "experts_local", "equals": 4}, True),
    ({"field": "first_expert", "equals": 4}, True),
    ({"field": "weights.bias", "equals": True}, True),
    ({"field": "activation.limit", "at_least": 0}, False),
    ({"field": "recipe", "equals": "bf16"}, True),
    ({"field": "activation_format", "equals": "batched"}, False),
    ({"any_of": [[{"field": "seed", "equals": 5}], [{"field": "seed", "equals": 0}, {"field": "recipe", "in": ["bf16"]}]]}, True),
    ({"any_of": [[{"field": "seed", "equals": 0}, {"field": "recipe", "in": ["fp16"]}]]}, False),
])
def test_clauses(clause: dict[str, Any], holds: bool) -> None:
    condition = Condition.of_case([clause])
    assert condition.holds(case_values(CASE)) is holds
    assert Condition.of_case(condition.to_data()) == condition


def test_all_clauses_must_hold_and_none_always_hold() -> None:
    right, wrong = {"field": "seed", "equals": 0}, {"field": "seed", "equals": 1}
    assert not Condition.of_case([right, wrong]).holds(case_values(CASE))
    assert Condition.of_case([]).holds(case_values(CASE))


def test_a_proof_needs_its_number() -> None:
    finite = Condition.of_numbers([{"field": "rules", "has": "finite"}])
    assert finite.holds({"rules": ["finite", "element"]})
    assert not finite.holds({"rules": ["element"]}) and not finite.holds({})
    assert not Condition.of_numbers([{"field": "exception", "not_in": ["KeyError"]}]).holds({})


@pytest.mark.parametrize(("data", "message"), [
    ("all", "a condition is a list"),
    (["x"], "a clause is a table"),
    ([{"field": "shape.tokens", "equals": 1}], "field 'shape.tokens' is unknown; allowed: shape.num_tokens"),
    ([{"field": "schema_version", "equals": 1}], "unknown"),
    ([{"field": "seed"}], "allowed: field with one of equals"),
    ([{"field": "seed", "equals": 1, "in": [1]}], "not understood"),
    ([{"field": "seed", "like": 1}], "not understood"),
    ([{"field": "seed", "in": 1}], "takes a list"),
    ([{"field": "seed", "in": []}], "takes a list"),
    ([{"field": "seed", "equals": [1]}], "takes one value"),
    ([{"field": "seed", "at_least": "1"}], "takes a number"),
    ([{"field": "seed", "equals": True}], "allowed: a number"),
    ([{"field": "seed", "has": 1}], "has is not allowed"),
    ([{"field": "routing.kind", "at_least": 1}], "at_least is not allowed"),
    ([{"field": "routing.kind", "in": ["uniform", "duplicates"]}], "'duplicates'; allowed: uniform, balanced"),
    ([{"field": "weights.bias", "equals": 1}], "allowed: True, False"),
    ([{"any_of": []}], "at least one group"),
    ([{"any_of": [[]]}], "at least one clause"),
    ([{"any_of": [[{"field": "x", "equals": 1}]]}], "unknown"),
])
def test_what_is_refused(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match="allowed|is a list|is a table|takes|needs") as error:
        Condition.of_case(data)
    assert message in str(error.value)
