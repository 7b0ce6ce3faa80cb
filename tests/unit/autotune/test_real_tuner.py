"""The tuner of real FlashInfer releases, on a CPU: its state as sequences of calls show it."""

from __future__ import annotations

import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from commandline import call
from flashinfer_site import VERSIONS, run_in_site
from gate_entries import PROBLEM, entry, evidence, toml

from moeguard.autotune.buckets import bucket_of, buckets
from moeguard.autotune.caps import kept
from moeguard.gate.blocklist import OPS

CAPS = (1, 7, 256, 300, 512, 1000, 2048, 3000, 4096, 5000, 8192, 16384, 20000)
TOKENS = (0, 1, 3, 255, 256, 257, 300, 511, 512, 513, 1000, 2047, 2049, 4095, 4097, 5000, 8191, 8192, 8193, 12000, 40000)
WANTED: dict[str, list[Any]] = {
    name: [name] for name in ("caps", "between_buckets", "stale_cap", "round_trip", "reversed_runners", "skip_ops", "blocklist",
                              "cached_before_blocked", "given_buckets", "healthy", "all_tactics_fail", "one_tactic_fails",
                              "out_of_memory", "only_the_fallback", "warm_cache")
} | {
    "one_tensor": ["between_buckets", [1000, 12000], 1],
    "other_release": ["round_trip", {"flashinfer_version": "0.0.1"}],
    "other_gpu": ["blocklist", {"gpu": "another"}],
    "memory_for_two_buckets": ["out_of_memory", 4],
} | {f"buckets {cap}": ["buckets", cap, TOKENS] for cap in CAPS}

#: Tactics of the two operations that are offered, the fastest last, and those of them that a finding is about.
OFFERED = {OPS[0]: [0, 1, 2], OPS[1]: [45, 46, 47]}
BAD = ("(2, -1)", "(-1, 46)", "(-1, 47)")
Facts = dict[str, Any]
NEW = [version for version in VERSIONS if version != "0.6.6"]
_seen: dict[str, Facts] = {}


def facts_of(version: str) -> Facts:
    """Every probe in one child process, since an import of FlashInfer costs seconds."""
    if version not in _seen:
        wanted = WANTED | {name: ["given_blocklist", text, OFFERED] for name, text in exported(version).items()}
        _seen[version] = run_in_site(version, "moeguard.autotune.sequences:run", wanted)
    return _seen[version]


def exported(version: str) -> dict[str, str]:
    """What ``allow export`` prints for a cell of this release with bad tactics, for 0.0 another release, and an empty file."""
    if version == "0.6.6":
        return {}
    right = ["default", "(0, -1)", "(1, -1)", "(-1, 45)"]
    found = [PROBLEM | {"tactic": tactic, "shapes": ["T=1 H=64 I=64 E=8 K=2"]} for tactic in BAD]
    seen = evidence(tactics=dict.fromkeys([*BAD, *right], 9), tactics_covered=right, open_findings=found)
    del seen["gpu"]
    cell = entry(backend="flashinfer_cutlass", flashinfer=version, cuda="none", driver="none", autotune="off", levels=[],
                 expires=date(2999, 1, 1), evidence=seen)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "moeguard-allowlist.toml"
        file.write_text(toml(cell))
        done = call("allow", "export", "--format", "flashinfer-blocklist", "--allowlist", file)
    assert (done.code, done.err) == (0, "")
    return {"exported": done.out, "exported for another": done.out.replace(f'"{version}"', '"0.0"'), "nothing exported": "{}"}


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def facts(version: str) -> Facts:
    return facts_of(version)


@pytest.fixture(params=NEW)
def new(request: pytest.FixtureRequest) -> Facts:
    """Facts of the releases from 0.6.18 on."""
    return facts_of(request.param)


@pytest.mark.parametrize("cap", CAPS)
def test_buckets_are_those_of_the_library(version: str, facts: Facts, cap: int) -> None:
    real = facts[f"buckets {cap}"]
    assert real["buckets"] == list(buckets(version, cap))
    served = [bucket if bucket in real["buckets"] else None for bucket in real["serving"]]
    assert served == [bucket_of(version, cap, tokens) for tokens in TOKENS]


def test_an_earlier_cap_wins(facts: Facts) -> None:
    stale = [8192, 512, 512]
    assert facts["caps"] == {"asked": [8192, 512, 8192], "throwaway": stale, "again": stale, "class_itself": stale}
    assert [kept((8192, 512, 8192)[:place]) for place in (1, 2, 3)] == stale


def test_a_large_batch_is_served_by_the_stale_cap(facts: Facts) -> None:
    assert facts["stale_cap"] == {"served_by_bucket": 512, "buckets": 10}


def test_counts_between_buckets_are_found_when_tensors_are_linked(new: Facts) -> None:
    assert [(one["tokens"], one["tactic"], one["found"]) for one in new["between_buckets"]] == [
        (1000, "1024", True), (4000, "4096", True), (8000, "8192", True), (12000, "8192", True)]


def test_counts_between_buckets_are_lost_in_0_6_6_when_tensors_are_linked() -> None:
    facts = facts_of("0.6.6")
    assert [(one["tactic"], one["found"]) for one in facts["between_buckets"]] == [("-1", False)] * 4
    assert [(one["tactic"], one["found"]) for one in facts["one_tensor"]] == [("512", True), ("8192", True)]


def test_saved_choices_are_found_again(new: Facts) -> None:
    trip = new["round_trip"]
    assert trip["loaded"] and trip["forgotten"] and trip["same"] and trip["found"] == [True] * 3
    assert len(trip["keys"]) == 3 and all("'FakeRunner'" in key for key in trip["keys"])


def test_choices_of_another_release_are_not_loaded(new: Facts) -> None:
    trip = new["other_release"]
    assert not trip["loaded"] and trip["found"] == [False] * 3


def test_the_order_of_runners_decides_in_0_6_6_which_one_gets_the_tactic() -> None:
    """The cache holds the place of the winner in the list of runners, up to 0.6.14."""
    assert facts_of("0.6.6")["reversed_runners"] == {"tuned": ["Fast", 7], "looked_up": ["Slow", 7]}


def test_the_order_of_runners_does_not_matter_later(new: Facts) -> None:
    assert new["reversed_runners"] == {"tuned": ["Fast", 7], "looked_up": ["Fast", 7]}


def test_features_of_later_releases_are_absent_in_0_6_6() -> None:
    absent = ("round_trip", "skip_ops", "blocklist", "cached_before_blocked", "given_buckets")
    assert [facts_of("0.6.6")[name] for name in absent] == [None] * 5


def test_a_skipped_op_is_not_tuned(new: Facts) -> None:
    skipped = new["skip_ops"]
    assert (skipped["returned"], skipped["runs"], skipped["after"]["planned"]) == (-1, 0, {})
    assert skipped["conclusion"]["reasons"] == ["moeguard::fake: the tuner was not asked about it, or skipped it"]


def test_a_blocked_tactic_is_not_profiled_and_foreign_metadata_voids_the_file(new: Facts) -> None:
    assert new["blocklist"] == {"loaded": True, "chosen": 1, "profiled": [0, 1]}
    assert new["other_gpu"] == {"loaded": False, "chosen": 2, "profiled": [0, 1, 2]}


def test_an_exported_blocklist_keeps_the_tuner_from_bad_tactics(new: Facts) -> None:
    before, after = new["nothing exported"], new["exported"]
    assert before == {"loaded": {}, "chosen": {OPS[0]: 2, OPS[1]: 47}, "profiled": OFFERED}
    assert after == {"loaded": {f"{OPS[0]}::MoERunner": 1, f"{OPS[1]}::MoERunner": 2}, "chosen": {OPS[0]: 1, OPS[1]: 45},
                     "profiled": {OPS[0]: [0, 1], OPS[1]: [45]}}


def test_an_exported_blocklist_of_another_release_is_not_loaded(new: Facts) -> None:
    assert new["exported for another"] == new["nothing exported"]


def test_a_cached_winner_outlives_its_block(new: Facts) -> None:
    assert new["cached_before_blocked"] == {"looked_up": 2, "tuned_again": 2}


def test_given_buckets_hold_inside_of_the_context_only(new: Facts) -> None:
    assert new["given_buckets"] == {"inside": 100, "inside_rounding_up": 1000, "outside": -1}


def test_a_healthy_tuning_is_not_vacuous(facts: Facts) -> None:
    healthy = facts["healthy"]
    assert (healthy["returned"], healthy["runs"], healthy["after"]["tuned"]) == (2, 9, {"moeguard::fake": 3})
    assert healthy["conclusion"] == {"vacuous": False, "reasons": [], "warm": [], "fallback": []}


def test_one_failing_tactic_is_passed_over(facts: Facts) -> None:
    assert facts["one_tactic_fails"]["returned"] == 1
    assert not facts["one_tactic_fails"]["conclusion"]["vacuous"]


def test_a_tuning_whose_tactics_all_fail_is_silent_and_vacuous(version: str, facts: Facts) -> None:
    failed = facts["all_tactics_fail"]
    assert (failed["returned"], failed["runs"], failed["after"]["tuned"]) == (-1, 9, {})
    named = "tactics failed while they were profiled, none of 3 buckets was tuned"
    if version != "0.6.6":
        assert failed["after"]["failed_tactics"] == {"moeguard::fake::FakeRunner": ["0", "1", "2"]}
        named = "each of the 3 offered tactics failed while it was profiled"
    assert failed["conclusion"]["reasons"] == [f"moeguard::fake: {named}"]


def test_memory_that_runs_out_ends_the_tuning_silently(facts: Facts) -> None:
    empty = facts["out_of_memory"]
    assert (empty["returned"], empty["runs"], empty["after"]["failing"]) == (-1, 1, {})
    assert empty["conclusion"]["reasons"] == [
        "moeguard::fake: none of 3 buckets was tuned; memory ran out, or every tactic was left out"]


def test_buckets_before_memory_ran_out_stay_tuned(facts: Facts) -> None:
    part = facts["memory_for_two_buckets"]
    assert part["returned"] == -1
    assert part["conclusion"] == {"vacuous": False, "reasons": [], "warm": [], "fallback": [["moeguard::fake", 4]]}


def test_a_choice_among_nothing_is_vacuous_although_it_is_cached(facts: Facts) -> None:
    assert all(one["found"] for one in facts["only_the_fallback"]["choices"])
    assert facts["only_the_fallback"]["conclusion"]["vacuous"]


def test_a_warm_cache_is_said_to_be_warm(facts: Facts) -> None:
    assert facts["warm_cache"]["runs"] == 0
    assert facts["warm_cache"]["conclusion"] == {"vacuous": False, "reasons": [], "warm": ["moeguard::fake"], "fallback": []}
