"""Sample logs of lm-evaluation-harness (``--log_samples``), read from a file or a folder."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from moeguard.core.errors import MoeguardError
from moeguard.evals.answer import Answer

#: ``samples_<task>_<date>.jsonl``, the date as lm-eval writes it.
_NAME = re.compile(r"samples_(?P<task>.+)_\d{4}-\d{2}-\d{2}T[\d.\-]+\.jsonl")
#: Words whose end is kept of a response when the question may be repeated in it and must not be guessed.
PRIVATE_BLOCK = 16


def read(path: Path, metric: str = "exact_match", *, repeats: bool = False) -> list[Answer]:
    """The answers of a sample log, or of all logs in a folder.

    repeats: take several logs of one task as repeats of it, in the order of their names. A response that is empty is taken for
    an error: lm-eval writes one where the server gave none. Raises MoeguardError with one sentence.
    """
    logs = [path] if path.is_file() else sorted(path.rglob("samples_*.jsonl"), key=lambda file: file.name)
    if not logs:
        raise MoeguardError(f"{path}: no sample log; allowed: a samples_*.jsonl of lm-eval --log_samples, or a folder with one")
    by_task: defaultdict[str, list[Path]] = defaultdict(list)
    for log in logs:
        by_task[_task(log)].append(log)
    for task, those in by_task.items():
        if len(those) > 1 and not repeats:
            raise MoeguardError(f"{path}: {len(those)} logs of task {task}; allowed: one, or --repeats to take them as repeats")
    return [answer for task, those in by_task.items() for answer in _repeats(those, task, metric)]


def _repeats(logs: Sequence[Path], task: str, metric: str) -> list[Answer]:
    """The answers of all logs of a task. Raises MoeguardError unless each has the same questions: a question that was answered
    less often than others would weigh less in the bound on the drop."""
    found = [_answers(log, task, metric, number) for number, log in enumerate(logs)]
    first, *others = [{(one.filter, one.doc_id) for one in answers} for answers in found]
    for log, asked in zip(logs[1:], others, strict=True):
        for name, doc in sorted(asked ^ first):
            there, missing = (logs[0], log) if (name, doc) in first else (log, logs[0])
            raise MoeguardError(f"{missing}: no answer to doc_id {doc} with filter {name}, which {there.name} has; allowed: "
                                "repeats of the same questions")
    return [answer for answers in found for answer in answers]


def private(task: str) -> bool:
    """Whether the questions of a task must not be readable anywhere: GPQA's authors ask for it."""
    return "gpqa" in task.lower()


def _task(log: Path) -> str:
    found = _NAME.fullmatch(log.name)
    return found["task"] if found else log.name.removesuffix(".jsonl").removeprefix("samples_")


def _answers(log: Path, task: str, metric: str, repeat: int) -> Sequence[Answer]:
    try:
        lines = log.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise MoeguardError(f"{log}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise MoeguardError(f"{log}: not UTF-8; allowed: a sample log of lm-eval") from None
    answers = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise MoeguardError(f"{log}: line {number} is not valid JSON; allowed: a sample log of lm-eval") from None
        if not isinstance(record, dict):
            raise MoeguardError(f"{log}: line {number} is no object; allowed: a sample log of lm-eval")
        try:
            answers.append(Answer.of(record, task, metric, repeat, PRIVATE_BLOCK if private(task) else 1, empty="error"))
        except ValueError as error:
            raise MoeguardError(f"{log}: line {number}: {error}") from None
    if not answers:
        raise MoeguardError(f"{log}: empty; allowed: a sample log of lm-eval")
    return answers
