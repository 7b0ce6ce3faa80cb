"""Where the scenarios of a campaign run: on processes of this host, or on those of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from moeguard.engine.pool import Pool, Workers
from moeguard.engine.process import visible_gpus
from moeguard.engine.rundir import RunDirectory
from moeguard.engine.worker import Settings


@contextmanager
def workers_of(directory: RunDirectory) -> Iterator[Workers]:
    """The workers that a run asks for. They start when they are first waited for, and end with the block."""
    options = directory.options
    settings = Settings(options.device, options.plugins, log=str(directory.path / "workers.log"),
                        gpus=visible_gpus(options.device))
    with Pool(settings, options.workers, options.timeout) as pool:
        yield pool
