"""Errors that a user can cause; each carries one clear sentence."""

from __future__ import annotations

#: What to do about a backend that is not known.
OWN_BACKEND = "a backend of your own needs --plugin FILE.py"


class MoeguardError(Exception):
    """Bad input or bad usage. ``str(error)`` is one sentence that names the field and what is allowed."""

    exit_code = 2


class CaseError(MoeguardError):
    """A case or a case file is malformed or describes an impossible shape."""


class PluginError(MoeguardError):
    """A backend plug-in does not import, or misses a part of the protocol."""


class RunDirectoryError(MoeguardError):
    """A run directory is missing, foreign, damaged, or of a newer version."""


class LedgerError(MoeguardError):
    """A ledger of known findings is missing, malformed, of a newer version, or contradicts itself."""


class AllowlistError(MoeguardError):
    """An allowlist or a policy is missing, malformed, of a newer version, or contradicts itself."""


class UnknownNameError(MoeguardError):
    """A backend, recipe, profile or device that does not exist was asked for."""

    def __init__(self, field: str, value: str, allowed: list[str], hint: str = "") -> None:
        known = f"{field}: unknown value {value!r}; allowed: {', '.join(allowed) or 'none'}"
        super().__init__(f"{known}; {hint}" if hint else known)


class HarnessError(RuntimeError):
    """The guard itself is at fault (for example a non-finite oracle); never blamed on a backend."""
