"""Layers and numbers of tokens as the command line names them."""

from __future__ import annotations

import pytest

from moeguard.cli.layers import case, columns, named, numbers, sizes
from moeguard.core.errors import CaseError, MoeguardError, UnknownNameError
from moeguard.fuzz.boundaries import LAYERS

MIXTRAL = {"hidden": 4096, "intermediate": 14336, "experts": 8, "top_k": 2}
SMALL = {"hidden": 32, "intermediate": 48, "experts": 4, "top_k": 2}


@pytest.mark.parametrize(("text", "found"), [("1", [1]), ("64,1,8192", [1, 64, 8192]), (" 5, 5 ,7", [5, 7])])
def test_numbers_are_distinct_and_increase(text: str, found: list[int]) -> None:
    assert numbers(text) == found


@pytest.mark.parametrize("text", ["", ",", "0", "-1", "1,,2", "1.5", "many", "1;2"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(MoeguardError, match="--tokens: .* allowed: numbers of 1 or more"):
        numbers(text)


@pytest.mark.parametrize(("text", "ranks"), [("Mixtral-8x7B", 1), ("mixtral-8X7b", 1), ("Mixtral-8x7B/tp1", 1),
                                             ("Mixtral-8x7B/tp8", 8)])
def test_sizes_of_a_model(text: str, ranks: int) -> None:
    assert sizes(text) == MIXTRAL | {"tp": ranks}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.model)
def test_every_model_has_a_case(layer: tuple[object, ...]) -> None:
    (name, *shape) = layer
    assert tuple(case("bf16", sizes(str(name)), 3, 7).shape.model_dump().values()) == (3, *shape)


@pytest.mark.parametrize("text", ["Mixtral-8x7B/", "Mixtral-8x7B/2", "Mixtral-8x7B/tp", "Mixtral-8x7B/tp0", "Mixtral-8x7B/tp-2",
                                  "Mixtral-8x7B/tp2/tp2", "Mixtral-8x7B/ep2", "Mixtral-8x7B/TP2", "Mixtral-8x7B/tp9999999999"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(MoeguardError, match="--layer: .* allowed: MODEL or MODEL/tpN, for example Mixtral-8x7B/tp2"):
        sizes(text)


@pytest.mark.parametrize("text", ["", "/tp2", "GPT-9", "Mixtral"])
def test_an_unknown_model_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(UnknownNameError, match="--layer: unknown value .*; allowed: Qwen3-30B-A3B, "):
        sizes(text)


def test_a_rank_of_a_layer() -> None:
    one = case("mxfp4_bf16", sizes("Mixtral-8x7B/tp2"), 5, 3, "geglu")
    assert (one.parallel.tp_size, one.intermediate_local, one.shape.intermediate_size) == (2, 7168, 14336)
    assert (one.recipe, one.seed, one.activation.kind, one.shape.num_tokens) == ("mxfp4_bf16", 3, "geglu", 5)


@pytest.mark.parametrize(("layer", "tokens", "seed", "message"), [
    ("Qwen3-30B-A3B/tp5", 1, 0, "--layer: .*tp_size"),
    ("Qwen3-30B-A3B", 10**11, 0, "--tokens: shape.num_tokens"),
    ("Qwen3-30B-A3B", 1, -1, "--seed: seed"),
])
def test_what_makes_no_case_is_named(layer: str, tokens: int, seed: int, message: str) -> None:
    with pytest.raises(CaseError, match=message):
        case("bf16", sizes(layer), tokens, seed)


@pytest.mark.parametrize(("change", "message"), [
    ({"hidden": 0}, "--hidden: 0; allowed: 1 or more"), ({"top_k": 0}, "--top-k: 0; allowed: 1 or more"),
    ({"top_k": 5}, "--top-k: 5 exceeds --experts 4"), ({"hidden": 10**12}, "sizes: shape.hidden_size")])
def test_sizes_that_make_no_case_are_named(change: dict[str, int], message: str) -> None:
    with pytest.raises(MoeguardError, match=message):
        case("bf16", SMALL | change, 1, 0)


def test_names_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="--recipe: unknown value 'fp4'"):
        case("fp4", SMALL, 1, 0)
    with pytest.raises(UnknownNameError, match="--activation: unknown value 'swilu'"):
        case("bf16", SMALL, 1, 0, "swilu")


def test_columns_are_each_layer_at_each_number_of_tokens() -> None:
    found = columns(named(["Mixtral-8x7B/tp2", "Kimi-K2", "mixtral-8x7b/tp2"]), "bf16", "64,1", 0)
    assert [(name, one.shape.num_tokens, one.shape.hidden_size) for name, one in found] == [
        ("Mixtral-8x7B/tp2", 1, 4096), ("Mixtral-8x7B/tp2", 64, 4096), ("Kimi-K2", 1, 7168), ("Kimi-K2", 64, 7168)]
