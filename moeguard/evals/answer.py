"""One scored answer of one arm, from a sample record of lm-evaluation-harness; questions and texts are left behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from moeguard.evals.response import Response

#: Fields of a record that are needed (lm-eval 0.4.13).
NEEDED = ("doc_id", "doc_hash", "prompt_hash", "target_hash", "arguments", "resps", "filtered_resps", "filter")
#: What the filters of lm-eval give when they find no answer.
INVALID = "[invalid]"
#: Stands for an answer that the server did not give; the relay puts it there.
MISSING = "\u2063moeguard: no answer\u2063"


@dataclass(frozen=True, slots=True)
class Answer:
    """task, filter, doc_id, repeat: what is paired. doc_hash, prompt_hash, target_hash: sha256, by lm-eval. arguments_hash:
    sha256 of the generation arguments. right: by the metric. invalid: no answer was found in the response. error: there was
    no response to score (its right is False and counts for nothing)."""

    task: str
    filter: str
    doc_id: int
    repeat: int
    doc_hash: str
    prompt_hash: str
    target_hash: str
    arguments_hash: str
    right: bool
    invalid: bool
    error: bool
    response: Response

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What it is paired on."""
        return self.task, self.filter, self.doc_id, self.repeat

    @classmethod
    def of(cls, record: Mapping[str, Any], task: str, metric: str = "exact_match", repeat: int = 0, block: int = 1, *,
           empty: Literal["answer", "error"] = "answer") -> Answer:
        """From a sample record. empty: what an empty response is. Raises ValueError with one clause that names the field."""
        missing = [name for name in (*NEEDED, metric) if name not in record]
        if missing:
            raise ValueError(f"{missing[0]}: missing; allowed: a sample record of lm-eval with metric {metric}")
        value = record[metric]
        if not isinstance(value, int | float) or value not in (0, 1):
            raise ValueError(f"{metric}: {value!r}; allowed: 0 or 1")
        if type(record["doc_id"]) is not int:
            raise ValueError(f"doc_id: {record['doc_id']!r}; allowed: an integer")
        text = _first(record["resps"])
        if not isinstance(text, str):
            raise ValueError("resps: no text; allowed: responses of a generate_until task")
        found = _first(record["filtered_resps"])
        error = text == MISSING or (text == "" and empty == "error")
        return cls(task, str(record["filter"]), record["doc_id"], repeat, str(record["doc_hash"]), str(record["prompt_hash"]),
                   str(record["target_hash"]), _digest(_settings(record["arguments"])), bool(value) and not error,
                   not error and found in (INVALID, "", None), error, Response.of("" if error else text, block))

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self) | {"response": self.response.to_data()}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Answer:
        """From JSON data. Raises KeyError, TypeError or ValueError when it is none."""
        held = {field.name: data[field.name] for field in fields(cls)}
        for name, kind in (("doc_id", int), ("repeat", int), ("right", bool), ("invalid", bool), ("error", bool)):
            if type(held[name]) is not kind:
                raise TypeError(name)
        return cls(**(held | {"response": Response.from_data(held["response"])}))


def _first(value: Any) -> Any:
    """The first of nested lists: of the answers to one request, ``take_first`` scores that one."""
    while isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            return None
        value = value[0]
    return value


def _settings(arguments: Any) -> Any:
    """The generation arguments without the prompt: in a file ``gen_args_0 -> arg_1``, in memory the second of a pair.

    Raises ValueError when they are neither.
    """
    if isinstance(arguments, Mapping):
        return [one.get("arg_1") if isinstance(one, Mapping) else None for _, one in sorted(arguments.items())]
    if not isinstance(arguments, Sequence):
        raise ValueError(f"arguments: {arguments!r}; allowed: an object or a list")
    return [one[1] if isinstance(one, Sequence) and len(one) > 1 else None for one in arguments]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
