"""Real FlashInfer packages for tests that need no GPU: the Python files of a wheel, each version in a folder of its own.

A process can hold one version only, so the code under test runs in a child process. The folders lie in ``.venv/flashinfer``
and are reused. Nothing of CUDA is installed: FlashInfer's Python runs on the torch of this environment.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commandline import ROOT

#: Releases that differ in their tuner, newest first. All import on a torch without CUDA, and so do others from 0.6.6 on.
VERSIONS = ("0.7.4", "0.6.18.post1", "0.6.6")
SITES = ROOT / ".venv" / "flashinfer"
#: What FlashInfer's import needs beside what moeguard's own dependencies bring (numpy, packaging, filelock).
COMPANIONS = ("apache-tvm-ffi>=0.1.6,<0.2", "ninja", "nvidia-ml-py", "requests", "urllib3", "certifi", "idna",
              "charset-normalizer", "tqdm")
#: Kernel sources and test data; nothing there is imported.
_LEFT_OUT = "flashinfer/data/"
_KEPT = (".py", ".json", ".csv", ".typed", ".txt")
_RESULT = "result of the child: "
_CHILD = """
import importlib, json, sys
module, _, name = sys.argv[1].partition(":")
result = getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2]))
print("\\n" + sys.argv[3] + json.dumps(result))
"""


def site(version: str) -> Path:
    """The folder that holds this version; made on first use, by one process at a time.

    Raises RuntimeError when the packages cannot be had: what needs them then fails, and is not skipped.
    """
    folder = SITES / version
    SITES.mkdir(parents=True, exist_ok=True)
    with _locked(SITES / f"{version}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=SITES) as making:
                _fill(Path(making) / "site", Path(making) / "wheels", version)
                (Path(making) / "site").rename(folder)
    return folder


def run_in_site(version: str, target: str, *arguments: Any, timeout: float = 120.0) -> Any:
    """Call ``module:function`` in a child process that sees this version of FlashInfer; its result, by way of JSON.

    arguments: JSON data. moeguard and the modules of ``tests`` can be imported there, and no GPU is visible.
    Raises RuntimeError with the child's last words when it fails, or takes more than ``timeout`` seconds.
    """
    folder = site(version)
    path = os.pathsep.join(map(str, (folder, ROOT, ROOT / "tests")))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLASHINFER_")} | {
        "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "FLASHINFER_WORKSPACE_BASE": str(SITES / "work"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _CHILD, target, json.dumps(arguments), _RESULT]
    try:
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout,
                              check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{target} on FlashInfer {version} took more than {timeout:g} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith(_RESULT)]
    if done.returncode or not lines:
        raise RuntimeError(f"{target} on FlashInfer {version} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(lines[-1].removeprefix(_RESULT))


def _fill(folder: Path, wheels: Path, version: str) -> None:
    """Download the wheels and unpack what an import needs."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary",
               ":all:", "--dest", str(wheels), f"flashinfer-python=={version}", *COMPANIONS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")] or ["pip gave no reason"]
        raise RuntimeError(f"FlashInfer {version} could not be downloaded, and the tests of its tuner need it: {lines[-1]}")
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            members = archive.namelist()
            if wheel.name.startswith("flashinfer_python-"):
                members = [name for name in members if _needed(name)]
            archive.extractall(folder, members)
    shutil.rmtree(wheels)


def _needed(name: str) -> bool:
    if ".dist-info/" in name:
        return True
    return name.startswith("flashinfer/") and not name.startswith(_LEFT_OUT) and name.endswith(_KEPT)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
