"""Releases of FlashInfer beside the adapters: each is asked in a process of its own, and the answers make a matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from moeguard.core.errors import MoeguardError
from moeguard.engine.probe import Answer, ask

#: How a folder for ``--wheels`` is made.
RECIPE = ("pip install --no-deps --target DIR flashinfer-python==VERSION, with apache-tvm-ffi, ninja, nvidia-ml-py, requests "
          "and tqdm where this environment lacks them")


def examine(folders: Sequence[Path], *, timeout: float = 300.0,
            progress: Callable[[str], None] = lambda what: None) -> list[dict[str, Any]]:
    """What each folder's release is asked, in the order in which they are given: JSON data of ``wheel_contract.examine``.

    A release that does not import has ``version``, ``failure`` and nothing else. timeout: seconds for one release.
    Raises MoeguardError when a folder holds no unpacked release.
    """
    versions = [(folder, _version(folder)) for folder in folders]
    found = []
    for folder, version in versions:
        progress(f"FlashInfer {version}")
        found.append(told(version, ask("contract", (), timeout=timeout, first=folder)))
    return found


def told(version: str, answer: Answer) -> dict[str, Any]:
    """The data of an answer, or why there is none."""
    return {"version": version, "failure": answer.failure} if answer.failure is not None else answer.data


def _version(folder: Path) -> str:
    """The release that lies in ``folder``, by the name of its metadata."""
    names = sorted(entry.name for entry in folder.glob("flashinfer_python-*.dist-info")) if folder.is_dir() else []
    if len(names) != 1 or not (folder / "flashinfer").is_dir():
        raise MoeguardError(f"--wheels: {folder} holds no unpacked flashinfer-python; allowed: a folder made by {RECIPE}")
    return names[0].removeprefix("flashinfer_python-").removesuffix(".dist-info")
