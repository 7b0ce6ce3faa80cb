"""HTTP requests to servers: those of this machine are reached directly, whatever proxy the environment names."""

from __future__ import annotations

import urllib.request
from typing import Any
from urllib.parse import urlsplit

#: Hosts that are this machine.
HERE = ("127.0.0.1", "localhost", "::1")


def opened(url: str, body: bytes | None, headers: dict[str, str], timeout: float) -> Any:
    """The response, a context manager: to a POST of ``body``, to a GET without one. Raises as ``urllib.request.urlopen``."""
    direct = [urllib.request.ProxyHandler({})] if urlsplit(url).hostname in HERE else []
    return urllib.request.build_opener(*direct).open(urllib.request.Request(url, body, headers), timeout=timeout)
