"""Questions from the user's own files, checked, in the form in which lm-evaluation-harness reads them."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeguard.core.errors import MoeguardError

Row = dict[str, Any]
#: Tasks, and the fields that a row of their data has.
FIELDS = {"gsm8k": ("question", "answer"),
          "gpqa": ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")}
#: Salt of the order of GPQA's choices: the same on every machine, whatever random state or cache there is.
SALT = "moeguard gpqa choices 1"
#: End of a GSM8K answer.
_FINAL = re.compile(r"####\s*-?[\d.,$]+\s*$")


@dataclass(frozen=True, slots=True)
class Dataset:
    """shots: rows shown as examples. rows: rows that are asked, in order; doc_id is the place."""

    shots: tuple[Row, ...]
    rows: tuple[Row, ...]

    @property
    def sha256(self) -> str:
        """Over all rows."""
        return hashlib.sha256(json.dumps([self.shots, self.rows], sort_keys=True).encode()).hexdigest()

    def limited(self, limit: int | None) -> Dataset:
        """The first ``limit`` questions. Raises MoeguardError when it is not positive."""
        if limit is not None and limit < 1:
            raise MoeguardError(f"--limit: {limit}; allowed: at least 1")
        return Dataset(self.shots, self.rows[:limit])

    @classmethod
    def of(cls, task: str, rows: Sequence[Row], train: Sequence[Row] | None, shots: int, source: str) -> Dataset:
        """Checked rows. train: where the examples come from; None: the first ``shots`` rows, which are not asked then.

        Raises MoeguardError that names row and field.
        """
        if shots < 0:
            raise MoeguardError(f"--shots: {shots}; allowed: 0 or more")
        if task == "gpqa" and shots:
            raise MoeguardError(f"--shots: {shots}; allowed: 0 for gpqa, whose questions are asked without examples")
        good = _checked(task, rows, source)
        examples = good[:shots] if train is None else _checked(task, train, "--train")[:shots]
        asked = good[shots:] if train is None else good
        if len(examples) < shots or not asked:
            raise MoeguardError(f"{source}: {len(rows)} rows; allowed: more than the {shots} of --shots")
        made = _choices if task == "gpqa" else dict
        return cls(tuple(map(made, examples)), tuple(map(made, asked)))


def load(path: Path, option: str = "--data") -> list[Row]:
    """Rows of a .jsonl, .json (a list) or .csv file. Raises MoeguardError with one sentence."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise MoeguardError(f"{option}: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise MoeguardError(f"{option}: {path} is not UTF-8; allowed: .jsonl, .json or .csv in UTF-8") from None
    if path.suffix == ".csv":
        return [dict(row) for row in csv.DictReader(text.splitlines(keepends=True))]
    if path.suffix == ".json":
        data = _json(text, f"{option}: {path}")
        if not isinstance(data, list):
            raise MoeguardError(f"{option}: {path} is no list; allowed: a list of objects")
        return data
    if path.suffix == ".jsonl":
        return [_json(line, f"{option}: {path} line {number}")
                for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    raise MoeguardError(f"{option}: {path}; allowed: a .jsonl, .json or .csv file")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise MoeguardError(f"{where}: not valid JSON") from None


def _checked(task: str, rows: Iterable[Any], source: str) -> list[Row]:
    good = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise MoeguardError(f"{source}: row {number} is no object; allowed: one with {', '.join(FIELDS[task])}")
        for name in FIELDS[task]:
            if not isinstance(row.get(name), str) or not row[name].strip():
                raise MoeguardError(f"{source}: row {number}: {name} is missing or no text; allowed: {', '.join(FIELDS[task])}")
        if task == "gsm8k" and not _FINAL.search(row["answer"]):
            raise MoeguardError(f"{source}: row {number}: answer does not end with #### and a number")
        good.append({name: row[name] for name in FIELDS[task]})
    return good


def _choices(row: Row) -> Row:
    """A GPQA row with its four choices in an order that follows from the question alone."""
    texts = [" ".join(row[name].replace(" [title]", ". ").split()) for name in FIELDS["gpqa"][1:]]
    order = sorted(range(4), key=lambda place: hashlib.sha256(f"{SALT}\0{row['Question']}\0{place}".encode()).digest())
    choices = [texts[place] for place in order]
    return {"Question": row["Question"], **{f"choice{place}": text for place, text in enumerate(choices, start=1)},
            "choices": choices, "answer": f"({'ABCD'[order.index(0)]})"}
