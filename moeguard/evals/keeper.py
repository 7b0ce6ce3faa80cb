"""A small parent for a server: it ends the server, and all that the server started, when its own stdin ends.

It is started by its path with the command as the one argument. Its stdin is a pipe from moeguard, so that the server does not
outlive moeguard, whatever ends that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

#: Seconds between SIGTERM and SIGKILL.
GRACE = 20.0


def main() -> None:
    """Run the command until it ends, or stdin does; its exit code."""
    server = subprocess.Popen(["/bin/sh", "-c", sys.argv[1]], stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_watch, args=(server,), daemon=True).start()
    code = server.wait()
    _signal(server, signal.SIGKILL)  # what the server left behind
    os._exit(code if code >= 0 else 128 - code)


def _watch(server: subprocess.Popen[bytes]) -> None:
    sys.stdin.buffer.read()
    _signal(server, signal.SIGTERM)
    time.sleep(GRACE)
    _signal(server, signal.SIGKILL)


def _signal(server: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, number)


if __name__ == "__main__":
    main()
