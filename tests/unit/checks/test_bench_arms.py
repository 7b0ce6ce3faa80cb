"""The arms of a measurement: verdict, reason and times, whatever the backend does."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest

import moeguard as mg
from moeguard.backends.torch_reference import TorchReference
from moeguard.checks.bench import Arm, bench
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case

CASE = Case.model_validate({"shape": dict(num_tokens=5, hidden_size=32, intermediate_size=32, num_experts=4, top_k=2), "seed": 1})


def arms(defect: Callable[..., None] = lambda tactic, out, prepared: None, choice: Any = "split", witness: str | None = None,
         supported: bool = True, raised: Exception | None = None) -> tuple[Arm, Arm]:
    """The arms of a backend that does ``defect`` after each call, and whose tuning picks ``choice`` or raises."""
    class Tuned(TorchReference):
        name = "tuned"

        def supports(self, case: Case) -> mg.Support:
            return mg.Support.yes() if supported else mg.Support.no("needs sm100")

        def tune(self, prepared: Any, batch: Any) -> Any:
            if raised:
                raise raised
            return choice

        def executed_tactic(self) -> str | None:
            return witness or self._executed

        def run(self, prepared: Any, batch: Any, out: Any, *, tactic: Hashable | None = None, workspace: Any = None) -> None:
            super().run(prepared, batch, out, tactic=tactic)
            defect(tactic, out, prepared)

    return bench(Session(Tuned(), CASE, Resources()))


def verdicts(found: tuple[Arm, Arm]) -> list[tuple[str, str | None, str, bool]]:
    return [(arm.name, arm.tactic, arm.verdict, arm.seconds is not None) for arm in found]


def wrong_when(name: str | None) -> Callable[..., None]:
    def defect(tactic: Hashable | None, out: Any, prepared: Any) -> None:
        if tactic == name:
            out.mul_(3)
    return defect


def test_both_arms_are_judged_and_timed() -> None:
    found = arms()
    assert verdicts(found) == [("default", None, "ok", True), ("tuned", "split", "ok", True)]
    assert all(1 <= arm.runs <= 5 and arm.seconds and arm.seconds > 0 and not arm.reason for arm in found)


@pytest.mark.parametrize(("tactic", "expected"), [(None, ["wrong", "ok"]), ("split", ["ok", "wrong"])])
def test_the_arm_that_is_wrong_says_so(tactic: str | None, expected: list[str]) -> None:
    found = arms(wrong_when(tactic))
    assert [arm.verdict for arm in found] == expected
    assert [bool(arm.reason) for arm in found] == [verdict == "wrong" for verdict in expected]


def test_a_tuning_that_keeps_the_default_is_the_same() -> None:
    assert verdicts(arms(choice=None))[1] == ("tuned", None, "same", False)


def test_a_tuning_that_keeps_a_wrong_default_is_not_vacuous() -> None:
    assert [arm.verdict for arm in arms(wrong_when(None), choice=None)] == ["wrong", "same"]


def test_a_vacuous_tuning() -> None:
    first, second = arms(raised=mg.VacuousTuning("every tactic was skipped"))
    assert (first.verdict, second.verdict, second.reason) == ("ok", "vacuous", "every tactic was skipped")


def test_a_tuning_that_crashes_leaves_the_default_as_it_is() -> None:
    first, second = arms(raised=RuntimeError("no kernel image"))
    assert first.verdict == "ok" and first.seconds
    assert (second.verdict, second.reason) == ("crash", "tune raised RuntimeError: no kernel image")


def test_a_tuned_tactic_that_crashes_is_named() -> None:
    first, second = arms(choice="unheard_of")
    assert (first.verdict, second.tactic, second.verdict) == ("ok", "unheard_of", "crash")
    assert "unknown tactic" in second.reason


def test_a_default_that_crashes() -> None:
    def defect(*_: object) -> None:
        raise ValueError("misaligned")

    first, second = arms(defect)
    assert (first.verdict, first.reason) == ("crash", "run raised ValueError: misaligned")
    assert (second.verdict, second.seconds) == ("not run", None)


def test_memory_that_runs_out_is_no_crash() -> None:
    def defect(*_: object) -> None:
        raise MemoryError

    first, second = arms(defect)
    assert [(arm.verdict, arm.seconds) for arm in (first, second)] == [("not run", None)] * 2
    assert first.reason == "run ran out of memory"


def test_another_tactic_than_the_tuned_one_is_wrong_and_has_no_time() -> None:
    _, second = arms(witness="segments")
    assert (second.verdict, second.seconds, second.reason) == ("wrong", None, "tactic split was requested, segments ran")


def test_what_is_written_outside_is_not_called_again() -> None:
    calls: list[object] = []

    def defect(tactic: Hashable | None, out: Any, prepared: Any) -> None:
        calls.append(tactic)
        if tactic is None:
            out.as_strided((1,), (1,), out.storage_offset() + out.numel())[0] = 1.0

    first, _ = arms(defect)
    assert (first.verdict, first.seconds, calls.count(None)) == ("wrong", None, 1)


def test_an_arm_that_changes_the_weights_is_wrong() -> None:
    def defect(tactic: Hashable | None, out: Any, prepared: Any) -> None:
        if tactic == "split":
            prepared.weights.down.data[0, 0, 0] = 7.0

    first, second = arms(defect)
    assert (first.verdict, second.verdict) == ("ok", "wrong")
    assert second.reason.startswith("run changed")


def test_an_unsupported_case_is_refused_and_never_launched() -> None:
    def defect(*_: object) -> None:
        raise AssertionError

    assert verdicts(arms(defect, supported=False)) == [("default", None, "refused", False), ("tuned", None, "refused", False)]
