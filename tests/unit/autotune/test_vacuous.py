"""Whether a tuning proved anything, decided from counters and choices alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moeguard.autotune.statistics import Choice, Statistics
from moeguard.autotune.vacuous import Conclusion, conclude

OP, RUNNER = "op", "op::Runner"
OFFERED = {OP: ("0", "1", "(2, 3)")}
NOTHING = Statistics()
TUNED = Statistics(planned={OP: 2}, tuned={OP: 2})


def chose(*tactics: str | None) -> list[Choice]:
    """One choice for each tactic, for 1, 2, 4, ... tokens; None was not found."""
    return [Choice(OP, 1 << place, "Runner", tactic or "-1", tactic is not None) for place, tactic in enumerate(tactics)]


def test_every_bucket_tuned() -> None:
    assert conclude(NOTHING, TUNED, chose("1", "(2, 3)"), OFFERED) == Conclusion()


def test_a_part_of_the_buckets_is_named() -> None:
    found = conclude(NOTHING, TUNED, chose("1", None), OFFERED)
    assert not found.vacuous and found.fallback == ((OP, 2),)


def test_a_cache_that_was_warm() -> None:
    found = conclude(TUNED, TUNED, chose("1"), OFFERED)
    assert (found.vacuous, found.warm) == (False, (OP,))


def test_a_fallback_that_won_against_measured_tactics_is_a_choice() -> None:
    assert not conclude(NOTHING, TUNED, chose("-1", "-1"), OFFERED).vacuous


@pytest.mark.parametrize(("after", "chosen", "offered", "reason"), [
    (TUNED, chose("-1"), {OP: ()}, "op: no tactic was offered but the fallback"),
    (TUNED, chose("-1"), {OP: ("-1",)}, "op: no tactic was offered but the fallback"),
    (NOTHING, [], OFFERED, "op: the tuner was not asked about it, or skipped it"),
    (TUNED, [], OFFERED, "op: 2 buckets were tuned, but no choice was read back"),
    (TUNED, chose(None), OFFERED,
     "op: 2 of 2 buckets were tuned, and none of those that were asked for: the fallback serves them"),
    (Statistics(planned={OP: 2}), chose(None), OFFERED,
     "op: none of 2 buckets was tuned; memory ran out, or every tactic was left out"),
    (Statistics(planned={OP: 2}, failing={OP: 1}), chose(None), OFFERED,
     "op: tactics failed while they were profiled, none of 2 buckets was tuned"),
    (Statistics(planned={OP: 2}, failing={OP: 2}, failed_tactics={RUNNER: frozenset(OFFERED[OP])}), chose(None), OFFERED,
     "op: each of the 3 offered tactics failed while it was profiled"),
    (Statistics(planned={OP: 2}, tuned={OP: 2}, failed_tactics={RUNNER: frozenset(OFFERED[OP])}), chose("-1"), OFFERED,
     "op: each of the 3 offered tactics failed while it was profiled"),
])
def test_vacuous(after: Statistics, chosen: list[Choice], offered: dict[str, tuple[str, ...]], reason: str) -> None:
    found = conclude(NOTHING, after, chosen, offered)
    assert (found.vacuous, found.reasons, found.sentence) == (True, (reason,), reason)


def test_one_untuned_op_of_two_is_enough() -> None:
    found = conclude(NOTHING, TUNED, chose("1"), {**OFFERED, "op2": ("0",)})
    assert found.vacuous and found.reasons == ("op2: the tuner was not asked about it, or skipped it",)
    assert found.to_data() == {"vacuous": True, "reasons": list(found.reasons), "warm": [], "fallback": []}


def test_failures_of_an_op_with_a_longer_name_do_not_count() -> None:
    after = Statistics(planned={OP: 2}, failing={OP: 1}, failed_tactics={"op2::Runner": frozenset(OFFERED[OP])})
    assert "tactics failed" in conclude(NOTHING, after, chose(None), OFFERED).sentence


def test_statistics_are_a_copy() -> None:
    live = SimpleNamespace(tuned_op_total_configs={OP: 1}, tuned_op_successful_configs={}, failing={},
                           failed_profiling_count={OP: {("key",)}}, failed_tactics={RUNNER: {1, (2, 3)}})
    read = Statistics.of(SimpleNamespace(stats=live))
    live.tuned_op_successful_configs[OP] = 9
    live.failed_tactics[RUNNER].clear()
    assert read.to_data() == {"planned": {OP: 1}, "tuned": {}, "failing": {OP: 1}, "failed_tactics": {RUNNER: ["(2, 3)", "1"]}}
