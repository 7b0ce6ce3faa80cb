"""Imported by the fork server alone: a client that is killed while it asks for a process does not end the server.

``multiprocessing.forkserver.main`` goes on after ECONNABORTED, but not after the EOFError that ``recvfds`` raises then.
"""

from __future__ import annotations

import errno
import socket
from multiprocessing import reduction

_receive = reduction.recvfds


def recvfds(connection: socket.socket, size: int) -> list[int]:
    try:
        return _receive(connection, size)
    except EOFError as error:
        raise ConnectionAbortedError(errno.ECONNABORTED, "the client is gone") from error


reduction.recvfds = recvfds
