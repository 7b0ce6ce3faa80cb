"""Checks: what is executed around a backend, and what is concluded. One module a check."""
