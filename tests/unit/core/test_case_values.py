"""Cases: JSON round trip, what is refused and in which words, fingerprints."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from moeguard.core.case import Case
from moeguard.core.errors import CaseError, MoeguardError

SHAPE = {"num_tokens": 3, "hidden_size": 128, "intermediate_size": 256, "num_experts": 8, "top_k": 2}
RICH = Case.model_validate({
    "shape": SHAPE, "recipe": "fp8_block", "activation": {"kind": "swiglu_oai", "alpha": 1.5, "beta": 0.5, "limit": 7.0},
    "routing": {"kind": "skewed", "method": "grouped_topk"}, "inputs": {"kind": "outlier"},
    "scales": {"kind": "tiny", "exponent": -40}, "weights": {"kind": "zero_expert", "bias": True},
    "layout": {"kind": "nan_padding"}, "parallel": {"ep_size": 4, "ep_rank": 3, "tp_size": 2, "tp_rank": 1, "dp_size": 2},
    "activation_format": "batched", "seed": 2**63 - 1})


@pytest.mark.parametrize("case", [Case.model_validate({"shape": SHAPE}), RICH])
def test_round_trip(case: Case, tmp_path: Path) -> None:
    assert Case.from_json(case.to_json()) == case
    assert Case.model_validate(case.model_dump(mode="json", by_alias=True)) == case
    assert pickle.loads(pickle.dumps(case)) == case
    (tmp_path / "case.json").write_text(case.to_json(indent=None))
    assert Case.load(tmp_path / "case.json") == case
    assert hash(Case.from_json(case.to_json())) == hash(case)


def test_json_starts_with_the_schema() -> None:
    assert json.loads(RICH.to_json())["schema"] == 1
    assert RICH.to_json().startswith('{\n  "schema": 1,')


def test_fields_have_defaults() -> None:
    case = Case.from_json(json.dumps({"schema": 1, "shape": SHAPE}))
    assert (case.recipe, case.activation.kind) == ("bf16", "swiglu")
    assert (case.routing.kind, case.routing.method) == ("uniform", "renormalize")
    assert (case.activation_format, case.seed, case.parallel.ep_size) == ("standard", 0, 1)


def test_immutable() -> None:
    with pytest.raises(ValidationError):
        RICH.seed = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        RICH.shape.top_k = 1  # type: ignore[misc]


def test_fingerprints_are_stable() -> None:
    assert Case.model_validate({"shape": SHAPE}).fingerprint == "e02416c2c5e9"
    assert RICH.fingerprint == "eac9b89f056e"
    assert RICH.with_(seed=1).fingerprint != RICH.fingerprint
    assert RICH.with_(seed=1).with_(seed=RICH.seed).fingerprint == RICH.fingerprint


def test_with_changes_nested_fields_and_validates() -> None:
    assert RICH.with_(shape={"num_tokens": 0}).shape.num_tokens == 0
    assert RICH.with_(shape={"num_tokens": 0}).shape.top_k == 2
    with pytest.raises(ValidationError):
        RICH.with_(shape={"top_k": 9})


def test_shard_of_a_rank() -> None:
    assert (RICH.experts_local, RICH.first_expert, RICH.intermediate_local) == (2, 6, 128)


@pytest.mark.parametrize(("inputs", "recipe", "activation", "exact"), [
    ("normal", "bf16", "swiglu", False), ("exact", "bf16", "swiglu", True), ("exact", "bf16", "relu2", True),
    ("exact", "fp8_block", "geglu_tanh", True), ("exact", "fp8_block", "relu2", False), ("exact", "bf16", "swiglu_oai", False)])
def test_exact(inputs: str, recipe: str, activation: str, exact: bool) -> None:
    case = Case.model_validate({"shape": SHAPE, "recipe": recipe, "inputs": {"kind": inputs}, "activation": {"kind": activation}})
    assert case.exact is exact


@pytest.mark.parametrize(("changes", "message"), [
    ({"schema": 2}, "case: schema 2 is not supported; allowed: 1"),
    ({"shape": SHAPE | {"top_k": 9}}, "case: shape.top_k: 9 exceeds num_experts 8"),
    ({"parallel": {"ep_size": 3}}, "case: parallel.ep_size: 3 does not divide num_experts 8"),
    ({"parallel": {"tp_size": 3}}, "case: parallel.tp_size: 3 does not divide intermediate_size 256"),
    ({"parallel": {"ep_size": 2, "ep_rank": 2}}, "case: parallel.ep_rank: 2; allowed: 0 to ep_size - 1 = 1"),
    ({"inputs": {"kind": "exact"}, "weights": {"bias": True}}, "case: weights.bias: must be false when inputs.kind is 'exact'"),
    ({"activation": {"kind": "silu", "limit": 1.0}},
     "case: activation: alpha, beta and limit are allowed for kind 'swiglu_oai' only"),
    ({"shape": SHAPE | {"hidden_size": 0}}, "case: shape.hidden_size: input should be greater than or equal to 1"),
    ({"shape": SHAPE | {"num_tokens": "3"}}, "case: shape.num_tokens: input should be a valid integer"),
    ({"colour": 1}, "case: colour: extra inputs are not permitted"),
])
def test_messages_name_the_field_and_what_is_allowed(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CaseError) as error:
        Case.from_json(json.dumps({"schema": 1, "shape": SHAPE} | changes))
    assert str(error.value) == message
    assert isinstance(error.value, MoeguardError)


def test_kinds_that_do_not_exist_are_refused_with_those_that_do() -> None:
    for field in ("activation", "routing", "inputs", "scales", "weights", "layout"):
        with pytest.raises(CaseError, match=f"case: {field}.kind: input should be '"):
            Case.from_json(json.dumps({"schema": 1, "shape": SHAPE, field: {"kind": "nope"}}))


@pytest.mark.parametrize("text", ["", "{", "nul", '{"schema": 1', "[]", "3", '"x"', "null"])
def test_text_that_is_no_case(text: str) -> None:
    with pytest.raises(CaseError, match="^here: "):
        Case.from_json(text, source="here")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite(value: str) -> None:
    text = json.dumps({"schema": 1, "shape": SHAPE, "activation": {"kind": "swiglu_oai", "alpha": 7}}).replace("7}", f"{value}}}")
    with pytest.raises(CaseError, match="alpha"):
        Case.from_json(text)


def test_text_that_is_nested_too_deeply() -> None:
    with pytest.raises(CaseError):
        Case.from_json("[" * 100_000)
