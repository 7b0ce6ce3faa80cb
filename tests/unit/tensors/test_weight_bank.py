"""The weight bank: bounded in bytes, the same bits however they came, and shared where the content is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moeguard.backends.torch_reference import TorchReference
from moeguard.checks.subject import Resources, weight_digests
from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.memory.digest import digest
from moeguard.tensors.operand import Weights
from moeguard.tensors.resident import MOST, Resident
from moeguard.tensors.weights import WeightBank, make_weights, weight_bytes

SHAPE = {"num_tokens": 5, "hidden_size": 128, "intermediate_size": 128, "num_experts": 6, "top_k": 2}


def case(**fields: Any) -> Case:
    return Case.model_validate({"shape": SHAPE, "seed": 9} | fields)


def prints(weights: Weights) -> dict[str, int]:
    return {name: digest(tensor) for name, tensor in weights.tensors().items()}


@pytest.mark.parametrize("recipe", sorted(RECIPES))
@pytest.mark.parametrize("fields", [
    {"scales": {"kind": "heterogeneous", "exponent": 3}, "weights": {"kind": "zero_expert", "bias": True}},
    {"inputs": {"kind": "exact"}}, {"scales": {"kind": "saturating"}, "activation": {"kind": "relu2"}}])
def test_a_shard_of_a_layer_that_is_held_has_the_bits_of_one_made_from_the_case(recipe: str, fields: dict[str, Any]) -> None:
    bank = WeightBank()
    whole = bank.get(case(recipe=recipe, **fields))
    for rank in (0, 2):
        shard = case(recipe=recipe, parallel={"ep_size": 3, "ep_rank": rank}, **fields)
        got, made = bank.get(shard), make_weights(shard)
        assert prints(got) == prints(made)
        assert all(tensor.shape == made.tensors()[name].shape for name, tensor in got.tensors().items())
        assert got.gate.data.untyped_storage().data_ptr() != whole.gate.data.untyped_storage().data_ptr()


def test_a_bank_holds_no_more_bytes_than_it_may_and_forgets_the_oldest() -> None:
    each = weight_bytes(make_weights(case()))
    bank = WeightBank(3 * each)
    sets = [bank.get(case(seed=seed)) for seed in range(3)]
    assert bank.get(case(seed=0)) is sets[0]  # used again, so seed 1 is the oldest
    bank.get(case(seed=3))
    assert bank.counters() == {"hits": 1, "misses": 4, "bytes": 3 * each}
    assert bank.get(case(seed=0)) is sets[0] and bank.get(case(seed=1)) is not sets[1]
    bank.clear()
    assert bank.counters()["bytes"] == 0


def test_what_is_larger_than_the_budget_is_held_alone() -> None:
    store: Resident[str] = Resident(4, len)
    assert store.get("a", lambda: "ab") == "ab" and store.get("b", lambda: "abcdefgh") == "abcdefgh"
    assert store.counters() == {"hits": 0, "misses": 2, "bytes": 8} and store.peek("a") is None
    assert store.get("c", lambda: "c") == "c" and store.peek("b") is None


def test_scenarios_that_differ_in_tokens_routing_inputs_and_seed_prepare_once() -> None:
    resources, backend = Resources(), TorchReference()

    def prepared(one: Case) -> object:
        return resources.prepare(backend, one, resources.problem(one).weights)

    first = prepared(case())
    same = case(routing={"kind": "skewed"}, inputs={"kind": "outlier"}, seed=13).with_(shape={"num_tokens": 7})
    assert prepared(same) is first
    for other in (case(seed=10), case(layout={"kind": "noncontiguous"}), case(inputs={"kind": "exact"}),
                  case(weights={"bias": True}), case().with_(shape={"top_k": 3})):
        assert prepared(other) is not first
    counters = resources.counters()
    assert (counters["prepared_hits"], counters["prepared_misses"]) == (1, 6)
    assert counters["weights_hits"] == 3  # top_k and layout change no weights
    assert counters["prepared_bytes"] >= 6 * weight_bytes(make_weights(case()))
    assert weight_digests(resources.problem(case())) == prints(make_weights(case()))


def test_unpacked_weights_end_with_their_operand() -> None:
    from moeguard.oracle import unpacked

    store = unpacked._Kept()
    weights = make_weights(case())
    held = store.get(weights.gate)
    assert store.get(weights.gate) is held and store._bytes == weights.gate.data.numel() * 8
    weights.gate.data[0, 0, 0] += 1.0  # a backend wrote to it
    assert store.get(weights.gate) is not held and torch.equal(store.get(weights.gate).value, weights.gate.data.double())
    del weights
    assert store._bytes == 0


@pytest.mark.parametrize("recipe", sorted(RECIPES))
@pytest.mark.parametrize("scales", [("tiny", -40), ("tiny", 124), ("tiny", -149), ("bimodal", 90), ("heterogeneous", 7)])
def test_edited_scales_on_codes_that_are_held_have_the_bits_of_weights_made_from_the_case(recipe: str, scales: tuple[str, int]
                                                                                          ) -> None:
    edited = case(recipe=recipe, scales={"kind": scales[0], "exponent": scales[1]}, weights={"kind": "zero_expert", "bias": True})
    bank = WeightBank()
    normal = bank.get(edited.with_(scales={"kind": "normal", "exponent": 0}))
    got, made = bank.get(edited), make_weights(edited)
    assert prints(got) == prints(made) != prints(normal)
    shared = got.gate.data.data_ptr() == normal.gate.data.data_ptr()
    assert shared == (RECIPES[recipe].weight_scale != "none" and scales != ("tiny", -149))


def test_few_values_are_kept_however_small_they_are() -> None:
    store: Resident[str] = Resident(1 << 20, len)
    for number in range(MOST + 3):
        store.get(str(number), lambda: "a")
    assert store.counters()["bytes"] == MOST and store.peek("2") is None and store.peek("3") == "a"
