"""Where the scenarios of a campaign run: on processes of this host, or on those of a Ray cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager

from moeguard.engine.pool import Pool, Workers
from moeguard.engine.process import visible_gpus
from moeguard.engine.rundir import RunDirectory
from moeguard.engine.worker import Settings


def workers_of(directory: RunDirectory) -> AbstractContextManager[Workers]:
    """The workers that a run asks for. They end with the block. Raises MoeguardError when its cluster cannot be reached."""
    options = directory.options
    log = str(directory.path / "workers.log")
    if options.ray is None:
        settings = Settings(options.device, options.plugins, log=log, gpus=visible_gpus(options.device))
        return Pool(settings, options.workers, options.timeout)
    from moeguard.engine.ray_pool import RayPool

    return RayPool(options.ray, Settings(options.device, options.plugins, log=log), options.workers, options.timeout,
                   directory.manifest["environment"])
