"""A campaign on a Ray cluster of two hosts, one of which dies: the results are those of one host."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commandline import ROOT, SMOKE, Called, Run, without_times

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20,
            "_system_config": {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500,
                               "health_check_failure_threshold": 2}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        cluster = Cluster(initialize_head=True, head_node_args=head)
        yield cluster
        cluster.shutdown()


def test_a_host_dies_in_the_middle(cluster: Any, clean_run: Run, healthy_plugin: Path, tmp_path: Path,
                                   cli: Callable[..., Called]) -> None:
    hosts = [cluster.add_node(num_cpus=1, object_store_memory=100 << 20) for _ in range(2)]
    path = tmp_path / "run"

    def lose_a_host() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            journal = path / "journal.jsonl"
            if journal.exists() and journal.read_text().count("scenario_finished") > 6:
                cluster.remove_node(hosts[0], allow_graceful=False)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=lose_a_host)
    thread.start()
    done = cli("run", "--plugin", healthy_plugin, *SMOKE, "--max-cases", 30, "--ray", cluster.address, "--json", "--out", path)
    thread.join()
    assert (done.code, done.err) == (0, "")
    assert without_times(done.data) == without_times(clean_run.data)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["options"]["ray"], manifest["options"]["workers"]) == (cluster.address, 2)


@pytest.mark.parametrize(("address", "reason"), [
    ("127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1; allowed: HOST:PORT of a running cluster, or auto"),
    ("nowhere", "no Ray cluster answers at nowhere; allowed: HOST:PORT of a running cluster, or auto"),
])
def test_a_cluster_that_is_not_there(address: str, reason: str, tmp_path: Path, cli: Callable[..., Called]) -> None:
    done = cli("run", "--ray", address, "--out", tmp_path / "run")
    assert (done.code, done.out, done.err) == (2, "", f"moeguard: --ray: {reason}\n")
    assert not (tmp_path / "run").exists()


def test_without_ray(tmp_path: Path, cli: Callable[..., Called], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = cli("run", "--ray", "auto", "--out", tmp_path / "run")
    assert (done.code, done.out) == (2, "")
    assert done.err == "moeguard: --ray: ray is not installed; allowed: after pip install 'moeguard[ray]'\n"
