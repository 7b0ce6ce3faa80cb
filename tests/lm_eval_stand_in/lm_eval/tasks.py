"""Stands in for ``lm_eval.tasks``."""

from __future__ import annotations


class TaskManager:
    """include_path: the folder of the task's file."""

    def __init__(self, include_path, include_defaults=True) -> None:
        self.include_path = include_path
