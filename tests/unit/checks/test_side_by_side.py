"""Two backends on one case: who is wrong, whether both are wrong in the same way, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from moeguard.backends.emulated_cutedsl.batched import EmulatedCuteDslBatched
from moeguard.backends.emulated_cutedsl.standard import EmulatedCuteDsl
from moeguard.backends.protocol import Backend, Support, Traits
from moeguard.checks.side_by_side import Comparison, side_by_side
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.mutants.broken_cutedsl import KernelMissing
from moeguard.oracle.sampling import choose_rows
from moeguard.tensors.operand import Batch
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

Compare = Callable[..., Comparison]
SHAPE = {"num_tokens": 12, "hidden_size": 64, "intermediate_size": 64, "num_experts": 6, "top_k": 3}


@pytest.fixture(scope="module")
def resources() -> Iterator[Resources]:
    """What the cases of this file share, with one thread of torch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Resources()
    torch.set_num_threads(threads)


class Changed(EmulatedCuteDsl):
    """Right but for ``factor`` in the columns from ``start`` on."""

    def __init__(self, name: str, factor: float, start: int = 0) -> None:
        self.name, self._factor, self._start = name, factor, start

    def run(self, prepared: Any, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        super().run(prepared, batch, out)
        out[..., self._start:] *= self._factor


class KernelOnly(EmulatedCuteDslBatched):
    """The masked kernel, without an engine around it."""

    name = "kernel_only"

    def supports(self, case: Case) -> Support:
        return Support.yes() if case.activation_format == "batched" else Support.no("the batched format only")


class NoEmptyBatch(EmulatedCuteDsl):
    name = "no_empty_batch"

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(zero_tokens="unsupported")

    def run(self, prepared: Any, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        raise ValueError("no tokens")


@pytest.fixture
def compare(resources: Resources) -> Compare:
    def call(first: Backend, second: Backend, **fields: Any) -> Comparison:
        return side_by_side(first, second, Case.model_validate({"shape": SHAPE} | fields), resources)

    return call


def test_both_right(compare: Compare) -> None:
    done = compare(EmulatedCuteDsl(), EmulatedCuteDslBatched())
    assert (done.outcome, done.wrong, done.executions) == ("agree", (), 2)
    assert done.distance is not None and 0 < done.distance.share < 1


@pytest.mark.parametrize("turned", [False, True])
def test_the_wrong_one_is_named_with_its_place(compare: Compare, turned: bool) -> None:
    pair = (Changed("bent", 1.5, 40), EmulatedCuteDslBatched())
    done = compare(*(pair[::-1] if turned else pair))
    assert (done.outcome, done.wrong) == ("one wrong", ("bent",))
    side = next(side for side in done.sides if side.backend == "bent")
    assert [one.kind for one in side.findings] == ["mismatch"] and side.findings[0].numbers["max_z_column"] >= 40
    assert done.distance is not None and done.distance.share > 1 and done.distance.column >= 40


def test_two_that_are_wrong_alike_and_two_that_are_not(compare: Compare) -> None:
    alike = compare(Changed("one", 1.5), Changed("two", 1.5))
    assert (alike.outcome, alike.wrong) == ("both wrong, alike", ("one", "two"))
    assert alike.distance is not None and alike.distance.share == 0
    apart = compare(Changed("one", 1.5), Changed("two", -1.5))
    assert apart.outcome == "both wrong, apart"
    assert compare(Changed("one", float("nan")), Changed("two", float("nan"))).outcome == "both wrong, apart"


@pytest.mark.parametrize("fields", [
    {}, {"parallel": {"ep_size": 3, "ep_rank": 2}}, {"routing": {"kind": "duplicate_ids"}}, {"recipe": "fp8_block"},
    {"routing": {"kind": "one_expert"}, "layout": {"kind": "nan_padding"}}], ids=str)
def test_a_kernel_of_the_batched_format_is_combined_as_an_engine_does(compare: Compare, fields: dict[str, Any]) -> None:
    done = compare(EmulatedCuteDsl(), KernelOnly(), **fields)
    assert done.outcome == "agree", done.sides
    assert [side.activation_format for side in done.sides] == ["standard", "batched"]
    assert done.distance is not None and 0 < done.distance.share < 1


def test_the_combine_can_tell_rows_of_one_expert_apart(compare: Compare) -> None:
    """Rows that went to the wrong tokens would be far outside of the band."""
    class Rolled(KernelOnly):
        name = "rolled"

        def store(self, out: Tensor, expert: int, count: int, value: Tensor) -> None:
            super().store(out, expert, count, value[:count].roll(1, 0))

    done = compare(EmulatedCuteDsl(), Rolled())
    assert (done.outcome, done.wrong) == ("one wrong", ("rolled",))
    assert done.distance is not None and done.distance.share > 10


def test_of_a_large_batch_the_rows_that_the_oracle_sees_are_compared(compare: Compare) -> None:
    shape = {"num_tokens": 2100, "hidden_size": 16, "intermediate_size": 16, "num_experts": 4, "top_k": 2}
    done = compare(EmulatedCuteDsl(), KernelOnly(), shape=shape)
    assert done.outcome == "agree" and done.distance is not None and 0 < done.distance.share < 1
    bent = compare(Changed("bent", 1.5), Changed("straight", 1.0), shape=shape)
    assert bent.wrong == ("bent",) and bent.distance is not None
    assert bent.distance.share > 1 and bent.distance.row in choose_rows(build_problem(bent.case, WeightBank())).tolist()


def test_a_crash_is_a_wrong_side_that_says_what_is_missing(compare: Compare) -> None:
    done = compare(KernelMissing(), EmulatedCuteDslBatched())
    assert (done.outcome, done.distance) == ("one wrong", None)
    sentence = done.sides[0].findings[0].sentence
    assert "flashinfer-python 0.6.6" in sentence and "cute_dsl_fused_moe" in sentence


def test_what_is_refused_is_not_compared(compare: Compare) -> None:
    done = compare(KernelOnly(), NoEmptyBatch(), shape=SHAPE | {"num_tokens": 0})
    assert (done.outcome, done.wrong) == ("not compared", ())
    assert [side.standing for side in done.sides] == ["unjudged", "refused"]

    class Nothing(EmulatedCuteDsl):
        name = "nothing"

        def supports(self, case: Case) -> Support:
            return Support.no("needs another GPU")

    done = compare(EmulatedCuteDsl(), Nothing())
    assert (done.outcome, done.sides[1].reason) == ("not compared", "needs another GPU")


def test_torch_defaults_are_left_as_they_were(compare: Compare) -> None:
    before = torch.get_default_dtype(), torch.get_num_threads()
    compare(EmulatedCuteDsl(), EmulatedCuteDslBatched())
    assert (torch.get_default_dtype(), torch.get_num_threads()) == before
