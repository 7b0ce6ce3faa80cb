"""A Ray cluster: how it is reached, and what it offers."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from moeguard.core.environment import fingerprint
from moeguard.core.errors import MoeguardError

ALLOWED = "allowed: HOST:PORT of a running cluster, or auto"
#: Seconds to reach the cluster, and those that are waited for a host when there is none.
CONNECT_TIMEOUT, HOST_TIMEOUT = 5.0, 180.0


@dataclass(frozen=True, slots=True)
class Site:
    """What a cluster offers. device: ``cuda`` when it has GPUs. slots: GPUs, or CPU slots. environment: of one of its hosts."""

    device: str
    slots: int
    environment: dict[str, Any]


def survey(address: str, device: str | None) -> Site:
    """Look at the cluster. Raises MoeguardError when there is no ray, no cluster, no such device, or no host that answers."""
    with connected(address) as ray:
        device = device or ("cuda" if ray.cluster_resources().get("GPU", 0) >= 1 else "cpu")
        slots, kind = slots_of(ray, device), "GPU" if device == "cuda" else "CPU slot"
        if slots < 1:
            raise MoeguardError(f"--ray: the cluster at {address} has no {kind}; allowed: a cluster with hosts for device "
                                f"{device}")
        try:
            asked = ray.remote(fingerprint).options(**needs(device)).remote(device)
            return Site(device, slots, ray.get(asked, timeout=HOST_TIMEOUT))
        except ray.exceptions.GetTimeoutError:
            reason = f"within {HOST_TIMEOUT:.0f} s"
        except ray.exceptions.RayError as error:
            reason = f"({str(error).splitlines()[-1][:120]})" if str(error) else f"({type(error).__name__})"
        raise MoeguardError(f"--ray: no host of the cluster at {address} answers {reason}; allowed: a cluster with a free {kind} "
                            "and moeguard on its hosts")


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module ``ray``, connected; a session that was open before is used, and stays open.

    Raises MoeguardError with one sentence when that is impossible.
    """
    try:
        import ray
    except ImportError:
        raise MoeguardError("--ray: ray is not installed; allowed: after pip install 'moeguard[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
        except (OSError, ValueError, OverflowError):
            raise MoeguardError(f"--ray: no Ray cluster answers at {address}; {ALLOWED}") from None
    import ray._private.worker

    ray._private.worker.print_to_stdstream = lambda *data, **named: None  # it prints the ends of hosts on our stdout
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, namespace="moeguard")
    except Exception as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise MoeguardError(f"--ray: no Ray cluster answers at {address} ({reason}); {ALLOWED}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def slots_of(ray: Any, device: str) -> int:
    """GPUs, or CPU slots, of the cluster."""
    return int(ray.cluster_resources().get("GPU" if device == "cuda" else "CPU", 0))


def needs(device: str) -> dict[str, float]:
    """What one worker takes of the cluster, as options of an actor or a task."""
    return {"num_gpus": 1, "num_cpus": 0} if device == "cuda" else {"num_cpus": 1}
