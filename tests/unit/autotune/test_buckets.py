"""Buckets as a function of release and cap, without FlashInfer."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from moeguard.autotune.buckets import bucket_of, buckets, rule_of
from moeguard.autotune.caps import effective_cap, effective_caps
from moeguard.autotune.runner_class import runner_class_of
from moeguard.core.errors import MoeguardError


@pytest.mark.parametrize(("version", "rule"), [
    ("0.2.9", "power_of_two_below"), ("0.6.6", "power_of_two_below"), ("0.6.9", "power_of_two_below"),
    ("0.6.10", "hybrid_above"), ("0.6.10.post1", "hybrid_above"), ("0.6.18rc7", "hybrid_above"), ("0.7.4", "hybrid_above")])
def test_rule(version: str, rule: str) -> None:
    assert rule_of(version) == rule


def test_hybrid_buckets_of_8192() -> None:
    found = buckets("0.7.4", 8192)
    assert len(found) == 21 and found[8:11] == (256, 512, 768) and found[-3:] == (3584, 4096, 8192)


@pytest.mark.parametrize("version", ["0.6.6", "0.7.4"])
@pytest.mark.parametrize("cap", [1, 2, 300, 512, 5000, 8192])
def test_every_count_is_served_by_a_bucket(version: str, cap: int) -> None:
    known = buckets(version, cap)
    assert list(known) == sorted(set(known)) and known[-1] <= cap
    served = [bucket_of(version, cap, tokens) or 0 for tokens in range(1, cap + 1, max(1, cap // 97))]
    assert set(served) <= set(known) and served == sorted(served)
    assert all(bucket_of(version, cap, bucket) == bucket for bucket in known)


def test_rounding_goes_down_before_and_up_after() -> None:
    assert (bucket_of("0.6.6", 8192, 5000), bucket_of("0.7.4", 8192, 5000)) == (4096, 8192)
    assert (bucket_of("0.6.6", 512, 8192), bucket_of("0.7.4", 512, 8192)) == (512, 512)


def test_a_batch_beyond_a_ragged_cap_is_not_found_before() -> None:
    assert [bucket_of("0.6.6", 5000, tokens) for tokens in (5000, 8191, 8192)] == [4096, 4096, None]
    assert bucket_of("0.6.6", 5000, 0) is None and bucket_of("0.7.4", 5000, 0) == 1
    assert bucket_of("0.6.6", 8192, 16384) == 8192 and bucket_of("0.7.4", 5000, 8192) == 5000


@pytest.mark.parametrize(("version", "cap", "named"), [("latest", 1, "latest"), ("", 1, "''"), ("0.7.4", 0, "0")])
def test_bad_input_is_named(version: str, cap: int, named: str) -> None:
    with pytest.raises(MoeguardError, match=named):
        buckets(version, cap)


class Plain:
    """A runner class without a memory of its calls."""

    tuning_config = SimpleNamespace(dynamic_tensor_specs=[SimpleNamespace(gen_tuning_buckets=(1, 4))])

    @classmethod
    def refine_tuning_config(cls, cap: int) -> None:
        cls.tuning_config = SimpleNamespace(dynamic_tensor_specs=[SimpleNamespace(gen_tuning_buckets=(1, cap))])


def test_caps_of_a_class_without_memory() -> None:
    before = Plain.tuning_config
    assert effective_caps(Plain, (8192, 512, 8192)) == [8192, 512, 8192]
    assert Plain.tuning_config is before
    assert effective_cap(Plain, 64) == 64


def test_a_runner_class_that_is_nowhere_is_said_so() -> None:
    with pytest.raises(RuntimeError, match="MoERunner is not where it was"):
        runner_class_of(SimpleNamespace(cutlass_fused_moe=lambda: None))


def test_nothing_here_imports_flashinfer() -> None:
    import moeguard.autotune.sequences  # noqa: F401

    assert "flashinfer" not in sys.modules
