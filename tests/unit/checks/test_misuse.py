"""Mistakes in a plug-in are findings about that plug-in: never a traceback of the guard, never silence."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from moeguard.backends.protocol import Traits
from moeguard.checks.plan import run_checks
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.checks.tactics import listed
from moeguard.core.case import Case
from moeguard.engine.scenario import run_scenario
from moeguard.memory.buffers import Workspace
from moeguard.mutants.base import Call, Pipeline
from moeguard.report.glossary import KINDS

CASE = Case.model_validate({
    "shape": {"num_tokens": 5, "hidden_size": 40, "intermediate_size": 24, "num_experts": 4, "top_k": 2}})


class Unhashable:
    """A tactic that cannot be a key."""

    __hash__ = None  # type: ignore[assignment]


class Unspeakable(Exception):
    """An exception whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def raising(error: BaseException) -> Callable[..., Any]:
    """A method that raises."""
    def method(*_: object, **__: object) -> Any:
        raise error
    return method


MISUSES: dict[str, dict[str, Callable[..., Any]]] = {
    "supports returns a bool": {"supports": lambda self, case: True},
    "supports returns None": {"supports": lambda self, case: None},
    "supports raises": {"supports": raising(KeyError("x"))},
    "traits returns None": {"traits": lambda self, case, tactic=None: None},
    "traits with an unknown word": {"traits": lambda self, case, tactic=None: Traits(invalid_ids="dropp")},  # type: ignore[arg-type]
    "traits with a word for a flag": {"traits": lambda self, case, tactic=None: Traits(deterministic="maybe")},  # type: ignore[arg-type]
    "numerics returns a word": {"numerics": lambda self, case, tactic=None: "fp64"},
    "tactics cannot be hashed": {"tactics": lambda self, prepared, batch: [Unhashable()]},
    "tactics is a number": {"tactics": lambda self, prepared, batch: 3},
    "workspace of the size of the universe": {"workspace_bytes": lambda self, prepared, batch: 1 << 60},
    "workspace of negative size": {"workspace_bytes": lambda self, prepared, batch: -8},
    "workspace of a fraction": {"workspace_bytes": lambda self, prepared, batch: 1.5},
    "run raises without a text": {"run": raising(Unspeakable())},
    "run raises control characters": {"run": raising(RuntimeError("\x00\ud800\x1b[31m" * 1000))},
    "run leaves the interpreter": {"run": raising(SystemExit(0))},
    "tune cannot be hashed": {"tactics": lambda self, prepared, batch: ("a",), "tune": lambda self, *_: Unhashable()},
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_a_crash_of_the_backend(name: str) -> None:
    backend = type("Misuse", (Pipeline,), {"name": "misuse", **MISUSES[name]})()
    done = run_scenario(backend, CASE, Resources())
    assert [finding.kind for finding in done.findings if finding.kind != "tactic_not_executed"][:1] == ["crash"]
    assert all(finding.sentence.isprintable() and len(finding.sentence) < 500 for finding in done.findings)


@pytest.mark.parametrize(("method", "sentence"), [
    ("supports", 'supports must return mg.Support.yes() or mg.Support.no("reason"), not int'),
    ("traits", "traits must return mg.Traits(...), not int"),
    ("numerics", "numerics must return mg.Numerics(...), not int"),
])
def test_a_wrong_type_is_answered_with_the_right_one(method: str, sentence: str) -> None:
    def run(self: Pipeline, prepared: Any, batch: Any, out: Tensor, **_: Any) -> None:
        out.zero_()

    backend = type("Misuse", (Pipeline,), {"name": "misuse", "run": run, method: lambda self, case, tactic=None: 7})()
    (finding,) = run_scenario(backend, CASE, Resources()).findings
    assert (finding.kind, finding.sentence) == ("crash", sentence)
    assert "supports" not in KINDS["crash"]


def test_many_tactics_are_counted() -> None:
    assert listed(range(8)) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert listed(range(11)) == "0, 1, 2, 3, 4, 5, 6, 7, and 3 more"
    assert listed(()) == "none"


def test_memory_that_runs_out_is_noted_and_not_blamed() -> None:
    words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12"
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(words)):
        done = run_scenario(type("Greedy", (Pipeline,), {"name": "greedy", "run": raising(error)})(), CASE, Resources())
        assert not done.findings and [note.what for note in done.notes] == ["memory"]


def test_a_full_disk_is_noted_and_not_blamed() -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    done = run_scenario(type("Compiles", (Pipeline,), {"name": "compiles", "run": raising(error)})(), CASE, Resources())
    assert not done.findings and [note.what for note in done.notes] == ["disk space"]


@pytest.mark.parametrize(("declared", "kinds"), [(0, []), (8 << 30, []), ((4 << 30) - (5 << 20), []), (1 << 20, ["crash"])])
def test_more_memory_than_the_declared_workspace_is_a_finding(declared: int, kinds: list[str],
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeguard.checks.session.Workspace", lambda size, device: Workspace(min(size, 1 << 10), device))
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 2 GiB")
    methods = {"name": "greedy", "run": raising(error), "workspace_bytes": lambda self, prepared, batch: declared}
    done = run_scenario(type("Greedy", (Pipeline,), methods)(), CASE, Resources())
    assert [finding.kind for finding in done.findings] == kinds
    if kinds:
        assert f"it asked for {4 << 30} bytes, and declares a workspace of {declared}" in done.findings[0].sentence


@pytest.mark.parametrize("method", ["tune", "guard"])
def test_other_calls_may_ask_for_more_than_the_workspace(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 2 GiB")
    methods: dict[str, Any] = {"name": "greedy", "workspace_bytes": lambda self, prepared, batch: 1 << 10}
    if method == "guard":
        monkeypatch.setattr("moeguard.checks.session.Workspace", raising(error))
    else:
        methods |= {"tactics": lambda self, prepared, batch: ("a",), method: raising(error)}
    done = run_scenario(type("Greedy", (Pipeline,), methods)(), CASE, Resources())
    assert "crash" not in [finding.kind for finding in done.findings]
    assert [note.reason for note in done.notes if note.what == "memory"] == [
        f"{'tune' if method == 'tune' else 'workspace_bytes = 1024'} ran out of memory"]


def test_a_guard_without_memory_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeguard.oracle.sampling.make_reference", raising(torch.OutOfMemoryError("none left")))
    done = run_scenario(type("Plain", (Pipeline,), {"name": "plain"})(), CASE, Resources())
    assert not done.findings and [note.what for note in done.notes] == ["memory"]


def test_defaults_that_a_backend_sets_stay_in_the_backend() -> None:
    class Settings(Pipeline):
        name = "settings"

        def compute(self, call: Call) -> Tensor:
            torch.set_default_dtype(torch.float32)
            value = super().compute(call)
            torch.set_default_dtype(torch.float64)
            torch.set_default_device("meta")
            return value

        def begin(self, *args: Any) -> Call:
            torch.set_default_device(None)
            return super().begin(*args)

    before = torch.get_default_dtype(), torch.get_default_device()
    try:
        done = run_scenario(Settings(), CASE, Resources())
        assert not done.findings and done.executions > 5
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert before == (torch.get_default_dtype(), torch.get_default_device())


def test_a_wrong_number_on_a_probe_is_not_called_a_routing_fault() -> None:
    class Scaled(Pipeline):
        name = "scaled"

        def compute(self, call: Call) -> Tensor:
            return super().compute(call) * 1.5

    done = Session(Scaled(), CASE.with_(routing={"kind": "duplicate_ids"}), Resources())
    run_checks(done)
    assert done.findings and {finding.kind for finding in done.findings} == {"mismatch"}


def test_a_tuned_choice_that_is_not_offered_is_noted() -> None:
    class Odd(Pipeline):
        name = "odd"
        choices = ("a", "b", "c")

        def tactics(self, prepared: Any, batch: Any) -> tuple[str, ...]:
            return ("a", "b")

        def begin(self, prepared: Any, batch: Any, out: Any, tactic: Any, workspace: Any) -> Call:
            call = super().begin(prepared, batch, out, None, workspace)
            return Call(call.prepared, call.batch, call.out, tactic or "a", call.workspace, call.numerics)

        def tune(self, prepared: Any, batch: Any) -> str:
            return "c"

    class Blind(Odd):
        def executed_tactic(self) -> None:
            return None

    for backend, noted in ((Blind(), True), (Odd(), False)):  # a choice that is seen to run needs no word
        done = Session(backend, CASE, Resources())
        run_checks(done)
        assert not done.findings and any("does not offer" in note.reason for note in done.notes) is noted
