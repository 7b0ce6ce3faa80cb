"""The environment fingerprint: what the evidence of a run is bound to."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from moeguard import __version__

PACKAGES = ("moeguard", "torch", "triton", "flashinfer-python", "flashinfer-jit-cache", "nvidia-cutlass-dsl", "hypothesis",
            "numpy", "pydantic")


def package_versions() -> dict[str, str | None]:
    """Installed versions by package name, None when absent; reads metadata only and imports nothing."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    found["moeguard"] = __version__  # also where it runs from a checkout
    return found


def fingerprint(device: str) -> dict[str, Any]:
    """JSON data: platform, Python, CPU count, package versions, and for ``cuda`` the GPU, its SM, driver and CUDA version."""
    data: dict[str, Any] = {
        "device": device,
        "arch": "cpu",
        "platform": platform.platform(terse=True),
        "machine": platform.machine(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "cpus": os.cpu_count(),
        "packages": package_versions(),
        "gpu": None,
        "cuda": None,
        "driver": None,
    }
    if device == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(0)
        data |= {"arch": f"sm{properties.major}{properties.minor}", "gpu": properties.name, "cuda": torch.version.cuda,
                 "driver": _driver_version()}
    return data


def _driver_version() -> str | None:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            first = file.readline()
    except OSError:
        return None
    return next((word for word in first.split() if word[:1].isdigit() and "." in word), None)
