"""The tuned range against what is served: the rule at its edges, with the figures of the two stories that it comes from."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, replace
from itertools import product
from typing import Any

import pytest

from moeguard.autotune.audit import KERNELS, LARGEST, OPTIONS, Audit, Setup, audit
from moeguard.autotune.buckets import KNOWN, bucket_of, buckets
from moeguard.autotune.caps import kept
from moeguard.autotune.spans import Span, spans
from moeguard.core.errors import MoeguardError


def audited(max_num_tokens: int, **fields: Any) -> Audit:
    return audit(Setup(max_num_tokens, **fields))


def codes(found: Audit) -> list[str]:
    return [caution.code for caution in found.warnings]


def sentence(found: Audit, code: str) -> str:
    (said,) = [caution.sentence for caution in found.warnings if caution.code == code]
    return said


# What is served and recommended

@pytest.mark.parametrize(("tokens", "dp", "kernel", "chunk", "served", "recommended"), [
    (512, 1, "cutlass", None, 512, 8192), (8191, 1, "cutlass", None, 8191, 8192), (8192, 1, "cutlass", None, 8192, 8192),
    (8193, 1, "trtllm", None, 8193, 8193), (4096, 2, "trtllm", None, 8192, 8192), (4097, 2, "cutedsl", None, 8194, 8194),
    (8192, 8, "cutlass", None, 65536, 65536), (8192, 8, "cutlass", 4096, 65536, 65536), (8192, 8, "trtllm", 4096, 65536, 65536),
    (8192, 8, "trtllm_nvfp4", None, 65536, 65536), (8192, 8, "trtllm_nvfp4", 4096, 4096, 4096),
    (8192, 8, "trtllm_nvfp4", 65535, 65535, 65535), (8192, 8, "trtllm_nvfp4", 65536, 65536, 65536),
    (8192, 8, "trtllm_nvfp4", 300000, 65536, 65536), (512, 2, "trtllm_nvfp4", 8191, 1024, 8191),
    (512, 2, "trtllm_nvfp4", 300000, 1024, 8192), (1, 1, "trtllm_nvfp4", 1, 1, 1), (1, 1, "cutlass", None, 1, 8192)])
def test_served_and_recommended(tokens: int, dp: int, kernel: str, chunk: int | None, served: int, recommended: int) -> None:
    setup = Setup(tokens, dp, chunk, kernel=kernel)
    assert (setup.served, setup.recommended) == (served, recommended)


@pytest.mark.parametrize("version", KNOWN)
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_recommended_has_no_warning(version: str, kernel: str) -> None:
    for tokens, dp, chunk in product([1, 511, 512, 513, 8191, 8192, 8193, 12345, 300001], [1, 2, 3], [None, 1, 5000, 300000]):
        setup = Setup(tokens, dp, chunk, capture_size=512, kernel=kernel, flashinfer_version=version)
        assert audit(replace(setup, tune_max_num_tokens=setup.recommended)).warnings == (), setup


# Warnings

def test_story_1_the_range_came_from_the_cuda_graphs() -> None:
    found = audited(8192, dp_size=8, capture_size=512, tune_max_num_tokens=512)
    assert codes(found) == ["tuned_below_served", "tuned_for_cudagraph_capture"]
    for word in ("512 tokens", "65536 (8192 x 8 data-parallel ranks)", "counts 513 to 65536", "bucket 512",
                 "set tune_max_num_tokens to 65536"):
        assert word in sentence(found, "tuned_below_served")
    assert "512" in sentence(found, "tuned_for_cudagraph_capture") and "65536" in sentence(found, "tuned_for_cudagraph_capture")
    assert found.buckets[-1] == Span(512, 257, 65536) and found.buckets[-1].worst_ratio == 128


def test_story_1_repaired_is_flashinfers_default_which_is_right_for_one_rank() -> None:
    assert codes(audited(8192, capture_size=512)) == []
    assert codes(audited(8192, capture_size=512, dp_size=8)) == ["tuned_below_served"]
    assert "(FlashInfer's default, none was given)" in sentence(audited(8192, dp_size=8), "tuned_below_served")


@pytest.mark.parametrize(("kernel", "chunk"), [("trtllm", None), ("trtllm_nvfp4", None), ("trtllm_nvfp4", 300000)])
def test_story_2_a_call_holds_more_than_8192_tokens(kernel: str, chunk: int | None) -> None:
    before = audited(8192, dp_size=4, kernel=kernel, chunk_size=chunk)
    assert codes(before) == ["tuned_below_served"] and before.setup.recommended == 32768
    after = audited(8192, dp_size=4, kernel=kernel, chunk_size=chunk, tune_max_num_tokens=32768)
    assert codes(after) == [] and (len(before.buckets), len(after.buckets)) == (21, 23)


def test_story_2_chunks_bound_the_range() -> None:
    found = audited(8192, dp_size=4, kernel="trtllm_nvfp4", chunk_size=4096, tune_max_num_tokens=32768)
    assert codes(found) == ["tuned_above_served"]
    assert "at most 4096 in one chunk and never uses 3 of the 23 tuned buckets" in sentence(found, "tuned_above_served")
    assert codes(audited(8192, dp_size=4, kernel="trtllm_nvfp4", chunk_size=4096)) == []


@pytest.mark.parametrize(("cap", "served", "below"), [(511, 512, True), (512, 512, False), (513, 512, False), (8192, 8193, True),
                                                      (8192, 8192, False), (1, 1, False), (1, 2, True)])
def test_a_range_below_what_is_served(cap: int, served: int, below: bool) -> None:
    assert ("tuned_below_served" in codes(audited(served, tune_max_num_tokens=cap))) is below


@pytest.mark.parametrize(("cap", "capture", "served", "warned"), [
    (512, 512, 513, True), (512, 512, 512, False), (512, 512, 256, False), (512, 511, 8192, False), (512, None, 8192, False)])
def test_a_range_that_is_a_capture_size(cap: int, capture: int | None, served: int, warned: bool) -> None:
    found = audited(served, tune_max_num_tokens=cap, capture_size=capture)
    assert ("tuned_for_cudagraph_capture" in codes(found)) is warned


@pytest.mark.parametrize(("tokens", "dp", "cap", "warned"), [
    (4096, 4, 4096, True), (4096, 4, 8192, True), (16384, 2, 16384, True), (4096, 4, 512, False), (16384, 2, 8192, False),
    (4096, 2, 8192, False), (16384, 1, 8192, False), (8192, 4, 32768, False), (8192, 4, None, False)])
def test_a_range_that_forgot_the_data_parallel_ranks(tokens: int, dp: int, cap: int | None, warned: bool) -> None:
    assert ("tuned_ignores_dp" in codes(audited(tokens, dp_size=dp, tune_max_num_tokens=cap))) is warned


@pytest.mark.parametrize(("tokens", "cap", "warned"), [
    (512, 8192, False), (512, 16383, False), (512, 16384, True), (16384, 32767, False), (16384, 32768, True), (1, LARGEST, True)])
def test_a_range_far_above_what_is_served(tokens: int, cap: int, warned: bool) -> None:
    found = audited(tokens, tune_max_num_tokens=cap)
    assert codes(found) == (["tuned_above_served"] if warned else [])
    if warned:
        unused = int(re.findall(r"never uses (\d+) of the \d+ tuned", found.warnings[0].sentence)[0])
        assert unused == sum(span.first is None for span in found.buckets) >= 1


@pytest.mark.parametrize(("tokens", "cap", "warned"), [(512, 511, False), (512, 512, True), (512, 8191, True), (512, 8192, False),
                                                       (9000, 8191, False), (512, None, False)])
def test_a_range_below_the_floor(tokens: int, cap: int | None, warned: bool) -> None:
    found = audited(tokens, tune_max_num_tokens=cap)
    assert ("tuned_below_floor" in codes(found)) is warned
    assert not {"tuned_below_floor", "tuned_below_served"} <= set(codes(found))


def test_the_floor_of_a_chunked_kernel_is_its_chunk() -> None:
    chunked = {"kernel": "trtllm_nvfp4", "chunk_size": 4096}
    assert codes(audited(512, tune_max_num_tokens=2048, **chunked)) == ["tuned_below_floor"]
    assert codes(audited(512, tune_max_num_tokens=4096, **chunked)) == []


def test_the_cost_of_a_range_far_above_is_estimated() -> None:
    (said,) = [one.sentence for one in audited(8192, tune_max_num_tokens=65536).warnings]
    assert "never uses 3 of the 24 tuned buckets, which cost about 1.5 s at start-up and 21 GiB of workspace (estimated)" in said


@pytest.mark.parametrize(("caps", "cap", "warned"), [
    ((8192, 512, 8192), 512, True), ((8192, 512), 512, False), ((512, 8192), 8192, False), ((8192,), 8192, False),
    ((512, 8192, 512), 8192, True), ((8192, 8192), 8192, False)])
def test_a_range_that_was_given_before_does_nothing(caps: tuple[int, ...], cap: int, warned: bool) -> None:
    found = audited(4096, caps=caps)
    assert found.setup.cap == cap == kept(caps) and ("cap_is_sticky" in codes(found)) is warned
    if warned:
        assert f"the ranges {', '.join(map(str, caps))} in turn" in sentence(found, "cap_is_sticky")


def test_rounding_down_is_noted() -> None:
    assert any("rounds down" in note for note in audited(512, flashinfer_version="0.6.9").notes)
    assert audited(512).notes == ()


@pytest.mark.parametrize("version", ["0.6.6", "0.6.9"])
def test_a_cap_that_is_no_power_of_two_where_counts_are_rounded_down(version: str) -> None:
    found = audited(9000, tune_max_num_tokens=5000, flashinfer_version=version)
    assert codes(found) == ["tuned_below_served", "cap_not_power_of_two"]
    assert ("counts 5001 to 8191 are served by the tactic of bucket 4096 and counts 8192 to 9000 are served by the untuned"
            in sentence(found, "tuned_below_served"))
    assert all(word in sentence(found, "cap_not_power_of_two") for word in (
        version, "counts 8192 to 9000", "under 5000", "to 9000 or to the power of two above it, 16384"))
    assert found.buckets[-1] == Span(None, 8192, 9000)
    assert codes(audited(9000, tune_max_num_tokens=5000, flashinfer_version="0.7.4")) == ["tuned_below_served"]


@pytest.mark.parametrize(("served", "cap", "lost"), [
    (8191, 5000, False), (8192, 5000, True), (8192, 8191, True), (8192, 4096, False)])
def test_the_edge_of_a_cap_that_is_no_power_of_two(served: int, cap: int, lost: bool) -> None:
    found = audited(served, tune_max_num_tokens=cap, flashinfer_version="0.6.6")
    assert ("cap_not_power_of_two" in codes(found)) is lost
    if cap == 8191:
        assert "(max_num_tokens): count 8192 is served by the untuned default tactic;" in sentence(found, "tuned_below_served")


def test_without_autotuning_the_range_does_not_matter() -> None:
    found = audited(8192, dp_size=2, capture_size=512, tune_max_num_tokens=512, autotune=False)
    assert codes(found) == ["autotune_off"] and "16384" in found.warnings[0].sentence


@pytest.mark.parametrize("version", KNOWN)
def test_a_warning_is_one_sentence_with_the_numbers_and_the_advice(version: str) -> None:
    caps, loads = [None, 1, 300, 512, 5000, 8191, 8192, 65536], [(1, 1), (512, 1), (8192, 1), (8192, 2), (12288, 3)]
    every = [audited(tokens, dp_size=dp, tune_max_num_tokens=cap, flashinfer_version=version, capture_size=512)
             for cap, (tokens, dp) in product(caps, loads)]
    for found, caution in [(one, caution) for one in every for caution in one.warnings]:
        assert re.fullmatch(r"[a-z][a-z_]*", caution.code)
        assert "\n" not in caution.sentence and not caution.sentence.endswith(".") and ": ;" not in caution.sentence
        assert f"set tune_max_num_tokens to {found.setup.recommended}" in caution.sentence
        assert str(found.setup.cap) in caution.sentence and str(found.setup.served) in caution.sentence


# Notes, values, bad input

def test_a_chunk_of_a_kernel_without_chunks_is_noted_and_no_warning() -> None:
    found = audited(8192, chunk_size=4096)
    assert found.warnings == () and "the chunk size 4096 is not used" in found.notes[0]


def test_an_audit_is_a_value_with_a_json_form() -> None:
    found = audited(8192, dp_size=2)
    data = json.loads(json.dumps(found.to_data()))
    assert data["served_tokens"] == 16384 and data["recommended"] == 16384 and data["tuned_by_default"] is True
    assert data["buckets"][-1] == {"bucket": 8192, "first": 4097, "last": 16384, "worst_ratio": 2.0}
    assert data["warnings"] == [caution.to_data() for caution in found.warnings]
    assert found == audited(8192, dp_size=2)
    with pytest.raises(FrozenInstanceError):
        found.setup.dp_size = 1  # type: ignore[misc]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("value", [0, -1, LARGEST + 1])
def test_a_number_out_of_range_is_named(name: str, value: int) -> None:
    if name == "tune_max_num_tokens":
        with pytest.raises(MoeguardError, match=f"^{OPTIONS[name]}: {value}; allowed: 1 to {LARGEST}"):
            Setup(1, caps=(value, 8))
    with pytest.raises(MoeguardError, match=f"^{OPTIONS[name]}: {value}; allowed: 1 to {LARGEST}"):
        Setup(**({"max_num_tokens": 1} | {name: value}))


@pytest.mark.parametrize("version", ["0.6.5", "0.7.5", "1.0", "latest", ""])
def test_an_unknown_version_is_refused_with_those_that_are_known(version: str) -> None:
    with pytest.raises(MoeguardError, match=f"--flashinfer-version: unknown value '{version}'; allowed: {', '.join(KNOWN)}"):
        Setup(1, flashinfer_version=version)


@pytest.mark.parametrize("version", [*KNOWN, "0.7.2.post1", "0.6.10", "0.7.0"])
def test_known_versions(version: str) -> None:
    assert Setup(1, flashinfer_version=version).flashinfer_version == version


def test_known_versions_are_those_of_the_adapter() -> None:
    from moeguard.backends.flashinfer_cutlass.versions import RELEASES

    assert tuple(RELEASES) == KNOWN


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(MoeguardError, match="--kernel: unknown value 'triton'; allowed: cutlass, trtllm, trtllm_nvfp4, cutedsl"):
        Setup(1, kernel="triton")


# Spans

@pytest.mark.parametrize("version", ["0.6.6", "0.7.4"])
@pytest.mark.parametrize("cap", [1, 2, 3, 255, 256, 257, 300, 512, 513, 1000, 4096, 4097, 5000, 8191, 8192, 9000])
def test_spans_agree_with_the_bucket_of_every_count(version: str, cap: int) -> None:
    for served in (1, 2, 3, 300, 511, 512, 513, 4097, 8191, 8192, 8193, 17000):
        table = spans(version, cap, served)
        assert tuple(span.bucket for span in table if span.bucket is not None) == buckets(version, cap)
        serving = {count: span.bucket for span in table if span.first and span.last
                   for count in range(span.first, span.last + 1)}
        assert list(serving) == list(range(1, served + 1))
    edges = {count + step for span in table for count in (span.first, span.last) if count for step in (-1, 0, 1)}
    assert all(bucket_of(version, cap, count) == serving[count] for count in edges & serving.keys())


@pytest.mark.parametrize(("span", "ratio"), [
    (Span(8192, 4097, 8192), 0.5001), (Span(8192, 4097, 32768), 4.0), (Span(8192, 4097, 12000), 0.5001),
    (Span(512, 512, 1023), 1.998), (Span(1, 1, 1), 1.0), (Span(None, 1, 2), None), (Span(8, None, None), None)])
def test_the_worst_ratio_is_the_one_furthest_from_1(span: Span, ratio: float | None) -> None:
    assert span.worst_ratio == ratio and span.to_data()["worst_ratio"] == ratio


def test_nothing_is_listed_count_by_count() -> None:
    assert len(audited(LARGEST, dp_size=LARGEST, tune_max_num_tokens=LARGEST).buckets) < 50
