"""Hosts of a cluster, without one: who may take part, what they run, how they are stopped, and whose session it is."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from moeguard.core.case import Case
from moeguard.core.errors import MoeguardError
from moeguard.core.events import Event, ScenarioFinished
from moeguard.engine.cluster import connected, survey
from moeguard.engine.ray_pool import Host, RayPool, _copied, _Seat
from moeguard.engine.worker import Job

CASE = Case.model_validate({"shape": dict(num_tokens=3, hidden_size=16, intermediate_size=16, num_experts=4, top_k=2)})


class FakeRayError(Exception):
    """What Ray raises."""


class FakeTimeoutError(FakeRayError):
    """What Ray raises when nobody answers."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A module with a session that is open already."""
    fake = MagicMock()
    fake.is_initialized.return_value = True
    fake.cluster_resources.return_value = {"CPU": 2.0}
    fake.exceptions = SimpleNamespace(RayError=FakeRayError, GetTimeoutError=FakeTimeoutError)
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def welcomed(environment: dict[str, Any]) -> tuple[RayPool, _Seat]:
    pool, seat = object.__new__(RayPool), _Seat(MagicMock(), 0)
    pool._environment = {"arch": "sm90", "gpu": "NVIDIA H200", "driver": "575"}
    pool._ray, pool._seats, pool.left_out = MagicMock(), [seat], []
    pool._welcome(seat, "far", environment)
    return pool, seat


def test_a_host_like_the_first_takes_part() -> None:
    pool, seat = welcomed({"arch": "sm90", "gpu": "NVIDIA H200", "driver": "575", "cpus": 3})
    assert (pool._seats, seat.ready, pool.left_out) == ([seat], True, [])


def test_a_host_with_another_gpu_model_is_left_out() -> None:
    pool, seat = welcomed({"arch": "sm90", "gpu": "NVIDIA H100", "driver": "575"})
    assert (pool._seats, pool.left_out) == ([], ["host far is left out: gpu NVIDIA H100, unlike the run"])
    seat.actor.close.remote.assert_called_once_with()
    pool._ray.kill.assert_called_once_with(seat.actor)


def test_a_plugin_is_the_one_that_was_sent(tmp_path: Path) -> None:
    here = tmp_path / "plugin.py"
    here.write_text("another one")
    copy = Path(_copied(str(here), b"sent", tmp_path))
    assert (copy.name, copy.parent.name, copy.read_bytes()) == ("plugin.py", hashlib.sha256(b"sent").hexdigest(), b"sent")
    assert Path(_copied(str(here), b"other", tmp_path)) != copy


def test_a_stop_may_arrive_before_its_job_and_ends_no_other() -> None:
    seen: list[float | None] = []

    def run(jobs: list[Job], remaining: Callable[[], float | None]) -> Iterator[tuple[Job, Event]]:
        seen.append(remaining())
        yield jobs[0], ScenarioFinished(scenario=0, status="clean", executions=1, seconds=0.0)

    host = object.__new__(Host)
    host._stopped, host._pool = None, SimpleNamespace(run=run)  # type: ignore[assignment]
    host.run(Job(0, "loop", CASE), 1)
    host.stop(2)
    host.run(Job(0, "loop", CASE), 2)
    host.run(Job(0, "loop", CASE), 3)
    assert seen == [None, 0.0, None]


def test_a_host_removes_its_files(tmp_path: Path) -> None:
    host = object.__new__(Host)
    host._pool, host._folder = MagicMock(), tmp_path / "mine"
    host._folder.mkdir()
    _copied("plugin.py", b"sent", host._folder)
    host.close()
    assert not host._folder.exists()


def test_a_session_of_the_caller_stays_open(ray: MagicMock) -> None:
    with connected("auto") as module:
        assert module is ray
    ray.init.assert_not_called()
    ray.shutdown.assert_not_called()


@pytest.mark.parametrize(("error", "reason"), [
    (FakeTimeoutError("Get timed out"), "within 180 s"),
    (FakeRayError("Traceback\nModuleNotFoundError: No module named 'moeguard'"),
     "(ModuleNotFoundError: No module named 'moeguard')"),
])
def test_a_cluster_whose_hosts_do_not_answer(error: Exception, reason: str, ray: MagicMock) -> None:
    ray.get.side_effect = error
    with pytest.raises(MoeguardError) as caught:
        survey("auto", None)
    assert str(caught.value) == (f"--ray: no host of the cluster at auto answers {reason}; allowed: a cluster with a free CPU "
                                 "slot and moeguard on its hosts")
