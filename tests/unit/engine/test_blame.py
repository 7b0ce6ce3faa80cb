"""Blame: the end of a process is bisected to the case that it takes, in fresh processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from moeguard.core.case import Case
from moeguard.core.events import Event, Found, ScenarioFinished
from moeguard.core.finding import Finding
from moeguard.engine.blame import PROCESSES, alone, blame, ended_alone
from moeguard.engine.options import Options
from moeguard.engine.pool import Pool
from moeguard.engine.shrink import settle
from moeguard.engine.worker import Job, Settings
from moeguard.ledger.standing import Standing

CASE = Case.model_validate({"shape": dict(num_tokens=3, hidden_size=16, intermediate_size=16, num_experts=4, top_k=2)})
CASES = [CASE.with_(seed=number) for number in range(16)]


class Fragile:
    """Workers without processes: the last job ends one when the seeds of ``needs`` ran in it before, in this order."""

    def __init__(self, *needs: int) -> None:
        self.needs, self.starts = list(needs), 0

    def fresh(self, jobs: Sequence[Job]) -> list[list[Event]]:
        self.starts += 1
        done: list[list[Event]] = []
        missing = list(self.needs)
        for job in jobs:
            last = job.case.seed == 15 and not missing
            if missing and job.case.seed == missing[0]:
                missing.pop(0)
            done.append([ScenarioFinished(scenario=-1, status="crash" if last else "clean", executions=1, seconds=0.0)])
        return done


def finding(count: int = 16, backend: str = "mine") -> Finding:
    launched = [{"scenario": number, "backend": backend if number != 4 else "other", "case": case.fingerprint}
                for number, case in list(enumerate(CASES))[-count:]]
    launched[-1]["backend"] = "mine"
    return Finding(kind="crash", check="values", backend="mine", case=CASES[15],
                   sentence="run (base) killed the process (SIGSEGV)", numbers={"call": "run (base)", "launched": launched})


def lookup(scenario: int) -> Case | None:
    return CASES[scenario]


def seeds(found: Finding) -> list[int]:
    return [one["case"]["seed"] for one in found.numbers["predecessors"]]


@pytest.mark.parametrize("needs", [(14,), (7,), (0,), (3, 9), (0, 14)])
def test_the_list_is_cut_down_to_what_it_takes(needs: tuple[int, ...]) -> None:
    workers = Fragile(*needs)
    assert not ended_alone(workers, finding())  # type: ignore[arg-type]
    (found,) = blame(workers, finding(), lookup)  # type: ignore[arg-type]
    assert seeds(found) == list(needs) and found.case == CASES[15] and found.reproduced
    assert found.numbers["guilty"] == CASES[needs[0]].fingerprint and "launched" not in found.numbers
    assert f"but only after case {CASES[needs[0]].fingerprint}" in found.sentence
    assert found.fingerprint == finding().fingerprint
    assert workers.starts <= PROCESSES


def test_a_guilty_case_of_another_backend_is_a_finding_of_its_own() -> None:
    found, guilty = blame(Fragile(4), finding(), lookup)  # type: ignore[arg-type]
    assert "of other" in found.sentence
    assert (guilty.backend, guilty.case, guilty.kind) == ("other", CASES[4], "crash")
    assert guilty.numbers["victim"] == CASES[15].fingerprint


def test_nothing_happens_again() -> None:
    assert blame(Fragile(99), finding(), lookup) == []  # type: ignore[arg-type]
    assert blame(Fragile(14), finding(1), lookup) == []  # type: ignore[arg-type]  # it was the first of its process


def test_a_case_that_does_it_alone_needs_no_other() -> None:
    workers = Fragile()
    assert ended_alone(workers, finding())  # type: ignore[arg-type]
    assert alone(finding()).numbers == {"call": "run (base)", "guilty": CASES[15].fingerprint, "predecessors": []}


#: H = 24 corrupts what a case with another H dies of; H = 32 ends the process at once.
PLUGIN = '''
import os
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference

class Victim(TorchReference):
    name = "victim"
    broken = False
    def prepare(self, weights, case):
        if self.broken and case.shape.hidden_size != 24:
            os.abort()
        self.broken = self.broken or case.shape.hidden_size == 24
        if case.shape.hidden_size == 32:
            os._exit(3)
        return super().prepare(weights, case)

mg.register(Victim())
'''


def test_the_moving_victim(tmp_path: Path) -> None:
    """Case 1 corrupts, case 2 dies: alone it does no harm, after case 1 it does."""
    path = tmp_path / "victim.py"
    path.write_text(PLUGIN)
    cases = [CASE.with_(shape={"hidden_size": size}) for size in (8, 24, 16, 32)]
    options = Options(backends=("victim",), recipes=("bf16",), cases=(CASE.model_dump(mode="json", by_alias=True),))
    with Pool(Settings("cpu", (str(path),)), 1, timeout=5.0) as pool:
        found = {}
        for number, case in enumerate(cases):
            for event in pool.run_one(Job(number, "victim", case)):
                if isinstance(event, Found):
                    found[number] = Finding.model_validate(event.finding)
        assert {number: one.kind for number, one in found.items()} == {2: "crash", 3: "crash"}
        assert [one["scenario"] for one in found[2].numbers["launched"]] == [0, 1, 2]
        assert [one["scenario"] for one in found[3].numbers["launched"]] == [3]
        (moved,) = settle(pool, found[2], options, Standing(), lambda scenario: cases[scenario])
        (single,) = settle(pool, found[3], options, Standing(), lambda scenario: cases[scenario])
    assert ([one["case"]["shape"]["hidden_size"] for one in moved.numbers["predecessors"]], moved.case) == ([24], cases[2])
    assert moved.sentence == ("prepare killed the process (SIGABRT), but only after case "
                              f"{cases[1].fingerprint} in the same process") and moved.reproduced
    assert (single.numbers["predecessors"], single.numbers["guilty"]) == ([], single.case.fingerprint)
    assert single.reproduced and "exit code 3" in single.sentence
