"""The pool: whatever a backend does to its process, its job ends with an event and the next one runs."""

from __future__ import annotations

import io
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from commandline import Called

from moeguard.core.case import Case
from moeguard.core.errors import HarnessError
from moeguard.core.events import Event, Executed, Found, Noted, Relaunched, ScenarioFinished, Usage
from moeguard.core.finding import Finding
from moeguard.engine.pool import PATIENCE, Pool
from moeguard.engine.process import GROWTH, WorkerProcess, visible_device, visible_gpus
from moeguard.engine.worker import Job, Settings, _Unfailing

#: A healthy backend and others that misbehave in one way each.
PLUGIN = '''
import os, sys, time
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference

print("printed by the plug-in")

def backend(label, misbehave, where="run"):
    class Bad(TorchReference):
        name = label
        def prepare(self, weights, case):
            if where == "prepare":
                misbehave()
            return super().prepare(weights, case)
        def run(self, *arguments, **options):
            if where == "run":
                misbehave()
            return super().run(*arguments, **options)
        def supports(self, case):
            return mg.Support.no("never") if where == "supports" else super().supports(case)
    mg.register(Bad())

backend("healthy", lambda: None)
backend("raises", lambda: 1 / 0)
backend("raises_in_prepare", lambda: 1 / 0, "prepare")
backend("aborts", os.abort)
backend("leaves", lambda: os._exit(3))
backend("exits", lambda: sys.exit("no GPU"))
backend("hangs", lambda: time.sleep(600))
backend("hangs_in_prepare", lambda: time.sleep(600), "prepare")
backend("unable", None, "supports")
backend("slow", lambda: time.sleep(0.3))

def taken_away():
    """By someone else, once: the file says whether it was."""
    file = __file__ + ".taken"
    if not os.path.exists(file):
        open(file, "w").close()
        os.kill(os.getpid(), 9)

backend("taken_away", taken_away)
backend("kills_itself", lambda: os.kill(os.getpid(), 9))

def lose_device():
    import moeguard.engine.worker as worker
    worker.device_lost = lambda device: True
    if "quietly" not in sys._getframe(1).f_code.co_name:
        raise RuntimeError("an illegal memory access was encountered")

def quietly():
    lose_device()

backend("loses_the_device", lose_device)
backend("loses_the_device_quietly", quietly)
'''
CASE = Case.model_validate({"shape": dict(num_tokens=3, hidden_size=16, intermediate_size=16, num_experts=4, top_k=2)})
ONLY = frozenset({"memory"})


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    path = tmp_path_factory.mktemp("pool") / "plugin.py"
    path.write_text(PLUGIN)
    return Settings("cpu", (str(path),), log=str(path.with_name("workers.log")))


@pytest.fixture(scope="module")
def pool(settings: Settings) -> Iterator[Pool]:
    with Pool(settings, 1, timeout=1.0) as pool:
        yield pool


def run(pool: Pool, backend: str) -> tuple[list[Event], ScenarioFinished, list[Finding]]:
    events = pool.run_one(Job(7, backend, CASE, ONLY))
    *before, last = events
    assert isinstance(last, ScenarioFinished) and last.scenario == 7
    assert not any(isinstance(event, ScenarioFinished) for event in before)
    return events, last, [Finding.model_validate(event.finding) for event in events if isinstance(event, Found)]


def healthy(pool: Pool) -> None:
    events, last, findings = run(pool, "healthy")
    assert (last.status, findings) == ("clean", [])
    assert last.executions == sum(isinstance(event, Executed) for event in events) == 2


def test_a_healthy_backend(pool: Pool) -> None:
    healthy(pool)


@pytest.mark.parametrize(("growth", "after"), [(GROWTH, [False, False, True]), (None, [False, False, False])])
def test_a_process_grows_from_its_first_measurement_on(growth: int | None, after: list[bool], settings: Settings) -> None:
    worker = WorkerProcess(settings, growth=growth)
    worker.connection, theirs = multiprocessing.Pipe()
    seen = []
    for more in (0, GROWTH, GROWTH + 1):
        theirs.send(Usage(worker="w", scenarios=1, executions=1, seconds=1.0, cpu_seconds=1.0, resident=(1 << 30) + more))
        worker.receive()
        seen.append(worker.grown)
    assert seen == after


def test_a_process_that_grew_is_replaced_before_the_next_job(pool: Pool) -> None:
    """Libraries keep what they compile for each shape."""
    healthy(pool)
    worker = pool._seats[0].worker
    assert worker.process is not None
    before, worker.grown = worker.process.pid, True
    healthy(pool)
    assert worker.process.pid != before and not worker.grown


def test_while_it_is_replaced_nobody_else_is_overdue(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a process on a GPU takes its time, and what others say meanwhile counts."""
    stop = WorkerProcess.stop

    def slowly(worker: WorkerProcess) -> None:
        if worker.alive:
            time.sleep(1.2)
        stop(worker)

    with Pool(settings, 2, timeout=1.0) as pool:
        pool.wait_ready()
        monkeypatch.setattr(WorkerProcess, "stop", slowly)
        first = pool._seats[0]
        ended = []
        for job, event in pool.run([Job(number, "slow" if number % 2 else "healthy", CASE, ONLY) for number in range(6)]):
            if isinstance(event, ScenarioFinished):
                ended.append(event.status)
                first.worker.grown |= first.first is job
        monkeypatch.undo()
    assert ended == ["clean"] * 6


@pytest.mark.parametrize(("backend", "sentence"), [
    ("raises", "run raised ZeroDivisionError: division by zero"),
    ("raises_in_prepare", "prepare raised ZeroDivisionError: division by zero"),
    ("exits", "run raised SystemExit: no GPU"),
])
def test_exceptions_are_crashes_of_the_backend(backend: str, sentence: str, pool: Pool) -> None:
    _, last, (finding,) = run(pool, backend)
    assert (last.status, finding.kind, finding.sentence) == ("findings", "crash", sentence)
    assert (finding.backend, finding.case) == (backend, CASE)


@pytest.mark.parametrize(("backend", "kind", "sentence"), [
    ("aborts", "crash", "run (base) killed the process (SIGABRT)"),
    ("leaves", "crash", "run (base) killed the process (exit code 3)"),
    ("hangs", "hang", "run (base) did not return within 1 s"),
    ("hangs_in_prepare", "hang", "prepare did not return within 2 s"),
])
def test_the_end_of_a_worker_is_a_finding_and_the_next_job_runs(backend: str, kind: str, sentence: str, pool: Pool,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeguard.engine.pool.PATIENCE", 2.0)
    _, last, (finding,) = run(pool, backend)
    assert (last.status, finding.kind, finding.sentence) == (kind, kind, sentence)
    assert (finding.backend, finding.case, finding.check) == (backend, CASE, "values")
    healthy(pool)


def test_slow_calls_get_as_many_times_the_time_out_as_the_help_says(cli: Callable[..., Called]) -> None:
    assert PATIENCE == 12
    assert "prepare and tune get 12 times it" in " ".join(cli("run", "--help").out.replace("\u2502", " ").split())


def test_a_case_that_is_not_supported_is_never_launched(pool: Pool) -> None:
    events, last, findings = run(pool, "unable")
    assert (last.status, last.executions, findings) == ("refused", 0, [])
    assert not any(isinstance(event, Executed) for event in events)


def test_what_backends_print_goes_to_the_log(pool: Pool, settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    healthy(pool)
    assert settings.log is not None
    assert "printed by the plug-in" in Path(settings.log).read_text()
    assert capfd.readouterr() == ("", "")


def test_two_workers_finish_all_jobs_and_a_hang_holds_up_one_of_them(settings: Settings) -> None:
    backends = ["healthy", "hangs", "healthy", "healthy", "leaves", "healthy", "unable"]
    jobs = [Job(number, backend, CASE, ONLY) for number, backend in enumerate(backends)]
    with Pool(settings, 2, timeout=1.0) as pool:
        status = {job.scenario: event.status for job, event in pool.run(jobs) if isinstance(event, ScenarioFinished)}
        processes = [worker.process for worker in (seat.worker for seat in pool._seats)]
    assert [status[number] for number in range(len(jobs))] == ["clean", "hang", "clean", "clean", "crash", "clean", "refused"]
    deadline = time.monotonic() + 10
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(process.is_alive() for process in processes)


def test_a_worker_that_does_not_start_is_the_guards_own_error(tmp_path: Path) -> None:
    with Pool(Settings("cpu", (str(tmp_path / "missing.py"),))) as pool, pytest.raises(HarnessError):
        pool.wait_ready()


def test_a_lost_device_is_blamed_once_and_on_nobody_else(settings: Settings) -> None:
    """A context that is broken for good looks like a failure of whatever runs next in the same process."""
    jobs = [Job(0, "loses_the_device", CASE), Job(1, "healthy", CASE), Job(2, "loses_the_device_quietly", CASE),
            Job(3, "healthy", CASE)]
    found: dict[int, list[Finding]] = {job.scenario: [] for job in jobs}
    status: dict[int, str] = {}
    with Pool(settings) as pool:
        for job, event in pool.run(jobs):
            if isinstance(event, Found):
                found[job.scenario].append(Finding.model_validate(event.finding))
            elif isinstance(event, ScenarioFinished):
                status[job.scenario] = event.status
    assert status == {0: "crash", 1: "clean", 2: "crash", 3: "clean"}
    assert [finding.kind for finding in found[0]] == ["crash"] and "illegal memory access" in found[0][0].sentence
    assert [finding.kind for finding in found[2]] == ["crash"] and "exit code 70" in found[2][0].sentence


def test_a_worker_that_dies_between_two_jobs_is_replaced(settings: Settings, spawned: None) -> None:
    with Pool(settings) as pool:
        assert isinstance(pool.run_one(Job(0, "healthy", CASE, ONLY))[-1], ScenarioFinished)
        process = pool._seats[0].worker.process
        process.kill()
        process.join()
        last = pool.run_one(Job(1, "healthy", CASE, ONLY))[-1]
    assert isinstance(last, ScenarioFinished) and last.status == "clean"


def test_a_worker_that_is_killed_from_outside_begins_its_job_again(settings: Settings, spawned: None) -> None:
    jobs = [Job(0, "taken_away", CASE, ONLY), Job(1, "healthy", CASE, ONLY)]
    with Pool(settings) as pool:
        events = [event for _, event in pool.run(jobs)]
    again = [type(event) for event in events].index(Relaunched)
    after = events[again + 1:]
    assert not any(isinstance(event, Found) for event in events)
    assert [event.number for event in after if isinstance(event, Executed)] == [1, 2, 1, 2]
    ends = [(event.scenario, event.status) for event in after if isinstance(event, ScenarioFinished)]
    assert ends == [(0, "clean"), (1, "clean")]


def test_a_backend_that_kills_its_process_again_and_again_is_blamed(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeguard.engine.pool.LAUNCHES", 1)
    _, last, (finding,) = run(pool, "kills_itself")
    assert (last.status, finding.kind) == ("crash", "crash")
    assert finding.sentence == "run (base) killed the process (SIGKILL), 1 times in a row"


def test_the_systems_out_of_memory_killer_is_nobodys_fault(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = iter([5, 6])
    monkeypatch.setattr("moeguard.engine.pool.out_of_memory_kills", lambda: next(kills))
    events, last, findings = run(pool, "kills_itself")
    assert (last.status, findings) == ("clean", [])
    assert [(event.what, event.reason) for event in events if isinstance(event, Noted)] == [
        ("memory", "the machine ran out of memory and killed the process")]


def test_what_is_under_way_when_time_is_up_is_stopped_and_keeps_its_verdicts(pool: Pool) -> None:
    healthy(pool)
    end = time.monotonic() + 1.0
    events = [(time.monotonic(), event) for _, event in pool.run([Job(3, "slow", CASE)], lambda: end - time.monotonic())]
    (_, note), (late, last) = events[-2:]
    assert end <= late < end + 0.2
    assert isinstance(note, Noted) and note.what == "budget" and note.reason.startswith("the budget ended during the scenario")
    assert isinstance(last, ScenarioFinished) and last.status == "stopped"
    assert last.executions == sum(isinstance(event, Executed) for _, event in events) <= 3


def test_workers_that_time_is_up_for_are_all_killed_before_the_first_is_waited_for(settings: Settings) -> None:
    """The end of a process with a GPU takes a third of a second: one after the other, many workers would overdraw a budget."""
    with Pool(settings, 2) as pool:
        pool.wait_ready()
        end = time.monotonic() + 0.5
        processes = [seat.worker.process for seat in pool._seats]
        events = pool.run([Job(0, "slow", CASE), Job(1, "slow", CASE)], lambda: end - time.monotonic())
        first = next(event for _, event in events if isinstance(event, Noted) and event.what == "budget")
        for process in processes:
            assert process is not None
            process.join(5)
            assert process.exitcode == -9
        rest = [event for _, event in events]
    assert first.scenario == 0
    assert [event.scenario for event in rest if isinstance(event, ScenarioFinished) and event.status == "stopped"] == [0, 1]


def test_workers_share_the_gpus_of_a_host_evenly() -> None:
    assert [visible_device(place, ("0", "1", "2")) for place in range(5)] == ["0", "1", "2", "0", "1"]
    assert [visible_device(place, ("GPU-a", "GPU-b")) for place in range(2)] == ["GPU-a", "GPU-b"]
    assert visible_device(3, ("0",)) is None and visible_device(3, ()) is None and visible_gpus("cpu") == ()


@pytest.mark.parametrize(("models", "named", "expected"), [
    (["H200", "H200"], None, ("0", "1")), (["H200", "L4", "H200"], None, ("0", "2")), (["H200", "H200"], "6, 7", ("6", "7")),
])
def test_only_gpus_like_the_first_one_are_shared(models: list[str], named: str | None, expected: tuple[str, ...],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(models))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: SimpleNamespace(name=models[number]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus("cuda") == expected


def test_printing_on_a_full_disk_succeeds() -> None:
    with open("/dev/full", "w") as file:
        loud = io.TextIOWrapper(io.BufferedWriter(_Unfailing(file.fileno())), line_buffering=True)
        print("loud" * 100_000, file=loud, flush=True)


def test_a_worker_that_ends_in_the_middle_of_a_message_is_gone(settings: Settings) -> None:
    worker = WorkerProcess(settings)
    worker.connection, theirs = multiprocessing.Pipe()
    os.write(theirs.fileno(), b"\0\0\1\0half of it")
    theirs.close()
    with pytest.raises(EOFError):
        worker.receive()
    with pytest.raises(EOFError):
        worker.send(Job(0, "healthy", CASE))
