"""Mutants are named, expected to be caught by known kinds, and really broken."""

from __future__ import annotations

import faulthandler
import math
import os
import re
import signal
import sys
import time

import pytest
import torch

from moeguard.backends.protocol import Backend
from moeguard.core.case import Case
from moeguard.core.finding import KINDS
from moeguard.core.recipe import RECIPES
from moeguard.engine.check import check
from moeguard.mutants.base import Broken, Pipeline
from moeguard.mutants.catalogue import CORPUS, MUTANTS, WITHOUT_MUTANT, corpus
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank, make_weights

BANK = WeightBank()
WRONG_VALUES = frozenset({"mismatch", "non_finite"})
IN_PROCESS = [kind for kind in MUTANTS if not kind.isolated]
ARITHMETIC = [kind for kind in IN_PROCESS if kind.expected <= WRONG_VALUES]


class Plain(Pipeline):
    name = "plain"


def healthy(kind: type[Broken]) -> Backend:
    """What the mutant would be without its defect."""
    if issubclass(kind, Pipeline):
        return Plain()
    return next(base() for base in kind.__mro__[1:] if issubclass(base, Backend) and not issubclass(base, Broken))


def answer(backend: Backend, case: Case) -> torch.Tensor:
    """The answer in guarded memory, so that a mutant that strays cannot hurt."""
    problem = build_problem(case, BANK)
    size = math.prod(problem.output_shape)
    storage = torch.zeros(size + 256, dtype=problem.output_dtype)
    out = storage[128: 128 + size].view(problem.output_shape)
    backend.run(backend.prepare(problem.weights, case), problem.batch, out)
    return out.clone()


def test_catalogue() -> None:
    names = [kind.name for kind in MUTANTS]
    assert len(set(names)) == len(names) >= 40
    for kind in MUTANTS:
        assert re.fullmatch(r"mutant_[a-z0-9_]+", kind.name)
        assert kind.expected and kind.expected <= set(KINDS)
        assert kind.__doc__ and "\n" not in kind.__doc__
        assert corpus(kind)[-len(CORPUS):] == CORPUS


def test_every_kind_of_this_release_has_a_mutant() -> None:
    covered = frozenset().union(*(kind.expected for kind in MUTANTS))
    assert covered == set(KINDS) - WITHOUT_MUTANT


def test_corpus_is_cheap_and_varied() -> None:
    assert len(set(CORPUS)) == len(CORPUS) >= 16
    assert all(case.shape.num_tokens <= 65 and case.shape.hidden_size <= 200 for case in CORPUS)
    assert {case.recipe for case in CORPUS} == set(RECIPES)
    assert {case.seed // 7 % 6 for case in CORPUS} == set(range(6))


@pytest.mark.parametrize("kind", ARITHMETIC, ids=lambda kind: kind.name)
def test_wrong_values_differ_from_healthy_ones(kind: type[Broken]) -> None:
    plain, mutant = healthy(kind), kind()
    assert any(not torch.equal(answer(mutant, case).nan_to_num(7.0), answer(plain, case).nan_to_num(7.0))
               for case in corpus(kind)[:6])


@pytest.mark.parametrize("kind", IN_PROCESS, ids=lambda kind: kind.name)
def test_caught_by_an_expected_kind(kind: type[Broken]) -> None:
    mutant = kind()
    found: set[str] = set()
    for case in corpus(kind):
        if mutant.supports(case).supported:
            found |= {finding.kind for finding in check(mutant, case).findings}
        if found & kind.expected:
            return
    pytest.fail(f"{kind.name}: expected one of {sorted(kind.expected)}, found {sorted(found)}")


def end_of(kind: type[Broken], seconds: float) -> int | None:
    """Wait status of a forked child that runs the mutant; None when it is still alive after ``seconds``."""
    case = corpus(kind)[0]
    problem = build_problem(case, BANK)
    mutant = kind()
    prepared = mutant.prepare(make_weights(case), case)
    out = torch.zeros(problem.output_shape, dtype=problem.output_dtype)
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        status = 99
        try:
            mutant.run(prepared, problem.batch, out)
        except SystemExit:
            status = 5
        finally:
            os._exit(status)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_isolated_mutants_end_their_process() -> None:
    ends = {kind.name: end_of(kind, 0.3 if kind.name == "mutant_hangs" else 10.0) for kind in MUTANTS if kind.isolated}
    assert ends.pop("mutant_hangs") is None
    assert os.waitstatus_to_exitcode(ends.pop("mutant_exits") or 0) == 3
    assert os.waitstatus_to_exitcode(ends.pop("mutant_raises_system_exit") or 0) == 5
    assert os.waitstatus_to_exitcode(ends.pop("mutant_segfaults") or 0) == -signal.SIGSEGV
    assert os.waitstatus_to_exitcode(ends.pop("mutant_aborts") or 0) == -signal.SIGABRT
    assert not ends
