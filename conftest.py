"""Shared by all tests: markers, the command line in this process, and campaigns that many tests look at."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commandline import ROOT, SMOKE, Called, Run, call

pytest_plugins = ["pytester"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children of the tests would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the problems are small, and the other worker needs its core


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is no GPU."""
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu:
        import torch

        if not torch.cuda.is_available():
            for item in gpu:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def from_fork_server() -> Iterator[pytest.MonkeyPatch]:
    """Worker processes and probes start at once; see fork_server.py."""
    import fork_server

    from moeguard.engine import probe, process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "CONTEXT", fork_server.context())
        patch.setattr(probe, "subprocess", fork_server.SUBPROCESS)
        yield patch


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes and probes as a user gets them: interpreters that import everything."""
    from moeguard.engine import probe, process

    monkeypatch.setattr(process, "CONTEXT", multiprocessing.get_context("spawn"))
    monkeypatch.setattr(probe, "subprocess", subprocess)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Reference counts alone free anything, unless the test collects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def cli() -> Callable[..., Called]:
    """``moeguard`` with the given arguments, in this process."""
    return call


@pytest.fixture
def clean_registry() -> Iterator[None]:
    """Forget backends and plug-in files that a test registers."""
    from moeguard.backends import registry

    state = dict(registry._registered), dict(registry._plugins)
    yield
    for live, kept in zip((registry._registered, registry._plugins), state, strict=True):
        live.clear()
        live.update(kept)  # type: ignore[arg-type]


def readme_plugin() -> str:
    """The plug-in that README.md shows."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if "mg.register(" in block)


@pytest.fixture(scope="session")
def healthy_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's plug-in, backend ``loop``."""
    path = tmp_path_factory.mktemp("healthy") / "loop.py"
    path.write_text(readme_plugin(), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def broken_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's plug-in as backend ``holey``: the last column is not written when T is odd."""
    source = readme_plugin().replace('name = "loop"', 'name = "holey"').replace(
        "out.copy_(total)", "end = out.shape[1] - out.shape[0] % 2\n        out[:, :end] = total[:, :end].to(out.dtype)")
    assert "holey" in source and "% 2" in source
    path = tmp_path_factory.mktemp("broken") / "holey.py"
    path.write_text(source, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def clean_run(healthy_plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A complete campaign on a healthy backend."""
    path = tmp_path_factory.mktemp("clean") / "run"
    return Run(call("run", "--plugin", healthy_plugin, *SMOKE, "--max-cases", 30, "--json", "--out", path), path)


@pytest.fixture(scope="session")
def broken_run(broken_plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A complete campaign on a backend with a defect."""
    path = tmp_path_factory.mktemp("broken") / "run"
    return Run(call("run", "--plugin", broken_plugin, *SMOKE, "--max-cases", 30, "--json", "--out", path), path)


@pytest.fixture
def broken_copy(broken_run: Run, tmp_path: Path) -> Path:
    """A copy of the broken campaign's directory, to be damaged."""
    return Path(shutil.copytree(broken_run.path, tmp_path / "copy"))
