"""The environment fingerprint on a CPU."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version

from moeguard.core.environment import PACKAGES, fingerprint, package_versions


def test_cpu_fingerprint_is_json_and_complete() -> None:
    data = fingerprint("cpu")
    assert json.loads(json.dumps(data)) == data
    assert (data["device"], data["arch"], data["machine"]) == ("cpu", "cpu", platform.machine())
    assert (data["gpu"], data["cuda"], data["driver"]) == (None, None, None)
    assert set(data["packages"]) == set(PACKAGES)


def test_versions_come_from_metadata_and_absent_packages_are_none() -> None:
    versions = package_versions()
    assert versions["torch"] == version("torch")
    assert versions["pydantic"] == version("pydantic")
    assert all(value is None or value for value in versions.values())
