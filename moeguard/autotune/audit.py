"""Whether the token range that FlashInfer tunes its MoE kernels for is the one that is served.

One call sees up to ``max_num_tokens x dp_size`` tokens, also without expert parallelism: the MoE layer spans the data-parallel
ranks. FlashInfer tunes up to ``tune_max_num_tokens`` (8192 unless told otherwise) and serves whatever is beyond it with the
tactic of the largest bucket. The range is right when it reaches what is served; the NVFP4 kernel of TRT-LLM is called in chunks,
which bound it.
Source: vLLM 0.33, ``fused_moe/utils.py::fi_moe_largest_bucket``; vllm#34542 for the range that came from CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from packaging.version import InvalidVersion, Version

from moeguard.autotune.buckets import KNOWN, rule_of
from moeguard.autotune.caps import kept
from moeguard.autotune.spans import Span, spans
from moeguard.core.errors import MoeguardError, UnknownNameError

Kernel = Literal["cutlass", "trtllm", "trtllm_nvfp4", "cutedsl"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
#: Tokens that FlashInfer tunes up to when it is not told; engines do not go below it.
DEFAULT_CAP = 8192
#: A range of this many times what is recommended is far above it: buckets double there, so one at least is never served.
FAR = 2
#: Estimates for a range that is too large. Seconds of tuning a bucket: 21 took 10 to 12 s (bf16, CUTLASS, H200). Bytes of the
#: tuner's workspace a token: one model asked for 12.22 GiB at 32768 tokens (vllm#53186).
SECONDS_A_BUCKET, BYTES_A_TOKEN = 0.5, 400_000
#: Largest number that an option may have: token counts are int32 in the kernels.
LARGEST = 2**31 - 1
#: Fields of a setup that are numbers, with their options.
OPTIONS = {"max_num_tokens": "--max-num-tokens", "dp_size": "--dp-size", "chunk_size": "--chunk-size",
           "capture_size": "--cudagraph-capture-size", "tune_max_num_tokens": "--tune-max-num-tokens"}


@dataclass(frozen=True, slots=True)
class Setup:
    """What is served and what is tuned.

    max_num_tokens: tokens of one data-parallel rank in one step. dp_size: data-parallel ranks. chunk_size: tokens of one call
    of a kernel that is called in chunks. capture_size: tokens of the largest CUDA graph. tune_max_num_tokens: the tuned
    range in tokens; None when the engine passes none. caps: ranges that one process is given in turn, for example for
    layers that differ; tune_max_num_tokens is then the one that FlashInfer keeps. autotune: whether the engine tunes at all.
    Raises MoeguardError, naming the option, on a number below 1 or above LARGEST, an unknown kernel or an unknown version.
    """

    max_num_tokens: int
    dp_size: int = 1
    chunk_size: int | None = None
    capture_size: int | None = None
    tune_max_num_tokens: int | None = None
    flashinfer_version: str = KNOWN[-1]
    kernel: str = "cutlass"
    autotune: bool = True
    caps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.caps:
            object.__setattr__(self, "tune_max_num_tokens", kept(self.caps))
        for name, option in OPTIONS.items():
            for value in (getattr(self, name), *(self.caps if name == "tune_max_num_tokens" else ())):
                if value is not None and not 1 <= value <= LARGEST:
                    raise MoeguardError(f"{option}: {value}; allowed: 1 to {LARGEST}")
        if self.kernel not in KERNELS:
            raise UnknownNameError("--kernel", self.kernel, list(KERNELS))
        if not known(self.flashinfer_version):
            raise UnknownNameError("--flashinfer-version", self.flashinfer_version, list(KNOWN),
                                   "and the releases between them")

    @property
    def all_ranks(self) -> int:
        """Tokens of all data-parallel ranks in one step."""
        return self.max_num_tokens * self.dp_size

    @property
    def chunk(self) -> int | None:
        """Tokens of a chunk, where the kernel is called in chunks."""
        return self.chunk_size if self.kernel == "trtllm_nvfp4" else None

    @property
    def served(self) -> int:
        """Tokens of the largest call."""
        return self.all_ranks if self.chunk is None else min(self.all_ranks, self.chunk)

    @property
    def recommended(self) -> int:
        """The range to tune for, in tokens."""
        largest = max(self.all_ranks, DEFAULT_CAP)
        return largest if self.chunk is None else min(largest, self.chunk)

    @property
    def cap(self) -> int:
        """The range that is tuned for, in tokens: FlashInfer's default when none is given."""
        return DEFAULT_CAP if self.tune_max_num_tokens is None else self.tune_max_num_tokens


@dataclass(frozen=True, slots=True)
class Caution:
    """One warning: a stable snake_case code, and one sentence that names the numbers and what to set instead."""

    code: str
    sentence: str

    def to_data(self) -> dict[str, str]:
        """JSON data."""
        return {"code": self.code, "sentence": self.sentence}


@dataclass(frozen=True, slots=True)
class Audit:
    """The answer for one setup: warnings, what serves which counts, and notes that are no warnings."""

    setup: Setup
    warnings: tuple[Caution, ...]
    buckets: tuple[Span, ...]
    notes: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        setup = self.setup
        return {"served_tokens": setup.served, "recommended": setup.recommended, "tuned_tokens": setup.cap,
                "tuned_by_default": setup.tune_max_num_tokens is None, "kernel": setup.kernel,
                "flashinfer_version": setup.flashinfer_version, "rule": rule_of(setup.flashinfer_version),
                "max_num_tokens": setup.max_num_tokens, "dp_size": setup.dp_size, "chunk_size": setup.chunk_size,
                "cudagraph_capture_size": setup.capture_size, "tune_max_num_tokens_given": list(setup.caps),
                "autotune": setup.autotune,
                "warnings": [caution.to_data() for caution in self.warnings],
                "buckets": [span.to_data() for span in self.buckets], "notes": list(self.notes)}


def known(version: str) -> bool:
    """Whether the bucket rule of this release of flashinfer-python is known: one of KNOWN, or between two of them."""
    try:
        return Version(KNOWN[0]) <= Version(version) <= Version(KNOWN[-1])
    except InvalidVersion:
        return False


def audit(setup: Setup) -> Audit:
    """Compare the tuned range with what is served. Launches nothing and needs no FlashInfer."""
    table = spans(setup.flashinfer_version, setup.cap, setup.served)
    warnings = _range(setup, table) if setup.autotune else _off(setup)
    return Audit(setup, tuple(warnings), table, tuple(_notes(setup)))


def _off(setup: Setup) -> Iterator[Caution]:
    yield Caution("autotune_off", (
        f"FlashInfer's autotuning is off, so all token counts up to {setup.served} are served by the untuned default tactic, "
        f"whatever the range; switch it on and tune up to {setup.recommended}"))


def _range(setup: Setup, table: tuple[Span, ...]) -> Iterator[Caution]:
    cap, served, advice = setup.cap, setup.served, f"set tune_max_num_tokens to {setup.recommended}"
    given = setup.tune_max_num_tokens is not None
    if setup.caps and setup.caps[-1] != cap:
        yield Caution("cap_is_sticky", (
            f"given the ranges {', '.join(map(str, setup.caps))} in turn, FlashInfer tunes up to {cap} afterwards (one call "
            f"holds up to {served}): a range that was given before is remembered and does nothing; give all layers of a process "
            f"the same one, {advice}"))
    if given and served <= cap < setup.recommended:
        yield Caution("tuned_below_floor", (
            f"tuned up to {cap} tokens, which reaches the {served} that are served, but not the {setup.recommended} that engines "
            f"tune for at least, so that the next larger batch has no tactic of its own; {advice}"))
    if cap < served:
        source = "" if given else " (FlashInfer's default, none was given)"
        yield Caution("tuned_below_served", (
            f"tuned up to {cap} tokens{source}, but one call holds up to {served} ({_product(setup)}): "
            f"{_beyond(cap, served, table)}; {advice}"))
    if given and cap < served and cap == setup.capture_size:
        yield Caution("tuned_for_cudagraph_capture", (
            f"the tuned range {cap} is the size of the largest captured CUDA graph, which says nothing about the {served} tokens "
            f"of one call; {advice}"))
    if given and cap < served and setup.dp_size > 1 and cap in (setup.max_num_tokens, max(setup.max_num_tokens, DEFAULT_CAP)):
        yield Caution("tuned_ignores_dp", (
            f"the tuned range {cap} is that of one data-parallel rank ({setup.max_num_tokens} tokens), but one call holds the "
            f"tokens of {setup.dp_size} ranks, up to {served}; {advice}"))
    if table[-1].bucket is None:
        yield Caution("cap_not_power_of_two", (
            f"FlashInfer {setup.flashinfer_version} rounds down to powers of two: "
            f"{_counts(table[-1].first or 1, served)} looked up under {cap}, which is never tuned for, so the untuned default "
            f"tactic serves; {_or_power(setup.recommended)}"))
    if given and cap >= FAR * setup.recommended:
        chunked = " in one chunk" if served == setup.chunk else ""
        unused = sum(span.first is None for span in table)
        yield Caution("tuned_above_served", (
            f"tuned up to {cap} tokens, {cap / setup.recommended:.3g} times what is recommended, but one call holds at most "
            f"{served}{chunked} and never uses {unused} of the {len(table)} tuned buckets, which cost about "
            f"{unused * SECONDS_A_BUCKET:.3g} s at start-up and {(cap - setup.recommended) * BYTES_A_TOKEN / 2**30:.2g} GiB of "
            f"workspace (estimated); {advice}"))


def _or_power(tokens: int) -> str:
    """Advice for releases that round down."""
    power = 1 << (tokens - 1).bit_length()
    return f"set tune_max_num_tokens to {tokens}" + ("" if power == tokens else f" or to the power of two above it, {power}")


def _product(setup: Setup) -> str:
    """How ``served`` comes about."""
    if setup.served == setup.chunk:
        return "one chunk"
    return f"{setup.max_num_tokens} x {setup.dp_size} data-parallel ranks" if setup.dp_size > 1 else "max_num_tokens"


def _beyond(cap: int, served: int, table: tuple[Span, ...]) -> str:
    """What serves the counts beyond the cap."""
    lost = table[-1].first if table[-1].bucket is None else None
    last = served if lost is None else lost - 1
    largest = next(span.bucket for span in reversed(table) if span.bucket is not None)
    tuned = f"{_counts(cap + 1, last)} served by the tactic of bucket {largest}" if last > cap else ""
    untuned = f"{_counts(max(lost, cap + 1), served)} served by the untuned default tactic" if lost is not None else ""
    return " and ".join(part for part in (tuned, untuned) if part)


def _counts(first: int, last: int) -> str:
    return f"count {first} is" if first == last else f"counts {first} to {last} are"


def _notes(setup: Setup) -> Iterator[str]:
    """What is worth knowing and no reason to fail."""
    if setup.chunk_size is not None and setup.chunk is None:
        yield f"the chunk size {setup.chunk_size} is not used: only trtllm_nvfp4 is called in chunks, not {setup.kernel}"
    if setup.kernel.startswith("trtllm") and setup.tune_max_num_tokens is None:
        yield (f"vLLM 0.33 passes {setup.recommended} as tune_max_num_tokens to most TRT-LLM kernels; give it to audit that, "
               f"otherwise FlashInfer's default is assumed")
    if rule_of(setup.flashinfer_version) == "power_of_two_below":
        yield (f"FlashInfer {setup.flashinfer_version} rounds down: a count is served by the tactic of the power of two below "
               f"it, which was never run at that count")
    if setup.kernel != "cutlass":
        yield f"the bucket table follows the rule of FlashInfer's CUTLASS MoE; that of {setup.kernel} may differ"
