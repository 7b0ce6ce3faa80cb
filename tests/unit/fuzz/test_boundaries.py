"""Boundary tables and their restriction to a range."""

from moeguard.fuzz import boundaries
from moeguard.fuzz.boundaries import EXPERTS, HIDDEN, INTERMEDIATE, LAYERS, TOKENS, TOP_K, within


def test_tables_increase() -> None:
    for table in (TOKENS, EXPERTS, TOP_K, HIDDEN, INTERMEDIATE):
        assert list(table) == sorted(set(table))


def test_tokens_surround_every_power_of_two() -> None:
    for power in range(2, 14):
        assert {2**power - 1, 2**power, 2**power + 1} <= set(TOKENS)
    assert TOKENS[0] == 1


def test_required_experts_and_top_k() -> None:
    assert {1, 2, 4, 8, 16, 60, 64, 128, 255, 256, 257, 512} <= set(EXPERTS)
    assert list(TOP_K) == list(range(1, 11))


def test_ragged_sizes_are_there() -> None:
    assert {928, 1536} <= set(HIDDEN) & set(INTERMEDIATE)
    for table in (HIDDEN, INTERMEDIATE):
        assert sum(size % 16 == 8 for size in table) >= 8
        assert table[0] == 8


def test_layers_are_possible() -> None:
    assert all(layer.top_k <= layer.num_experts for layer in LAYERS)
    assert boundaries.EXPONENTS == (-149, 127)


def test_within() -> None:
    assert within(TOKENS, 1, 9) == (1, 2, 3, 4, 5, 7, 8, 9)
    assert within(HIDDEN, 128, 512, 128) == (128, 256, 384, 512)
    assert within(EXPERTS, 5, 6) == (5,)
