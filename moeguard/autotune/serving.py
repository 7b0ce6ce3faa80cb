"""What an engine's own settings say about the token range: vLLM's command line, or a file with its keys.

A file is JSON, TOML or YAML, flat (``max_num_batched_tokens``) or in vLLM's sections (``kernel_config``); ``_`` and ``-``
are the same.
Source: vLLM 0.33, ``vllm/engine/arg_utils.py`` and ``vllm/utils/argparse_utils.py``.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from moeguard.core.errors import MoeguardError

#: Keys that are numbers of 1 or more, by the field of ``audit.Setup`` that they set.
NUMBERS = {"max-num-batched-tokens": "max_num_tokens", "max-num-tokens": "max_num_tokens", "data-parallel-size": "dp_size",
           "dp-size": "dp_size", "chunk-size": "chunk_size", "tune-max-num-tokens": "tune_max_num_tokens",
           "max-cudagraph-capture-size": "capture_size", "cudagraph-capture-size": "capture_size"}
#: Keys that are lists of CUDA graph sizes; the largest counts, unless the maximum is given too.
LISTS = ("cudagraph-capture-sizes", "cuda-graph-sizes")
#: Keys with a value of another kind.
OTHERS = ("moe-backend", "optimization-level", "prefill-context-parallel-size", "flashinfer-version")
#: Switches of autotuning: whether a true value turns it on.
SWITCHES = {"enable-flashinfer-autotune": True, "no-enable-flashinfer-autotune": False, "disable-flashinfer-autotune": False}
SECTIONS = ("compilation-config", "kernel-config", "scheduler-config", "parallel-config")
SHORT = {"-dp": "--data-parallel-size", "-O": "--optimization-level", "-cc": "--compilation-config"}
BACKENDS = {"flashinfer_cutlass": "cutlass", "flashinfer_trtllm": "trtllm", "flashinfer_cutedsl": "cutedsl"}
#: vLLM's suffixes of numbers: lower case is decimal and may have a fraction, upper case is binary.
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30, "": 1}


@dataclass(frozen=True, slots=True)
class Settings:
    """What one source says.

    values: fields of ``audit.Setup`` that it sets. ignored: options or keys that mean nothing here. notes: one sentence for
    each setting that does not do what it seems to, or that the audit cannot take into account.
    """

    values: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def from_file(path: Path) -> Settings:
    """Settings of a JSON, TOML or YAML file. Raises MoeguardError when it cannot be read, or a value is none that is allowed."""
    readers = {".json": json.loads, ".toml": tomllib.loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load}
    if path.suffix not in readers:
        raise MoeguardError(f"--config: {path}: another suffix; allowed: {', '.join(readers)}")
    try:
        data = readers[path.suffix](path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MoeguardError(f"--config: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise MoeguardError(f"--config: {path} is malformed: {error}") from None
    if not isinstance(data, dict):
        raise MoeguardError(f"--config: {path} holds no object of settings")
    return _settings("--config", _flat("--config", data.items()), flat_false_counts=False)


def from_arguments(text: str) -> Settings:
    """Settings of a ``vllm serve`` command line. Raises MoeguardError on bad quoting, or a value that is missing or wrong."""
    source = "--vllm-args"
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise MoeguardError(f"{source}: {error}") from None
    pairs = list(_options(source, words))
    dotted = {key.partition(".")[0] for key, _ in pairs if "." in key}
    lost = [key for key, _ in pairs if key in dotted]
    found = _settings(source, _flat(source, (pair for pair in pairs if pair[0] not in lost)), flat_false_counts=True)
    notes = tuple(f"--{key}: vLLM drops the JSON, since --{key}.… stands beside it" for key in dict.fromkeys(lost))
    ignored = tuple(key if key.startswith("-") else f"--{key}" for key in found.ignored)
    return Settings(found.values, ignored, (*notes, *found.notes))


def _options(source: str, words: list[str]) -> Iterator[tuple[str, Any]]:
    """Key and value of each option; a list for several values, True for none. Words before the first option are no options."""
    place = 0
    while place < len(words):
        word, place = words[place], place + 1
        if not _is_option(word):
            continue
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            name, value, equals = _short(name, value, equals)
        key, values = _key(name.removeprefix("--")), [value] if equals else []
        while not equals and place < len(words) and not _is_option(words[place]):
            values.append(words[place])
            place += 1
        last = key.rpartition(".")[2]
        if last in SWITCHES and "." not in key and values:
            raise MoeguardError(f"{source}: {name} takes no value, {values[0]!r} was given")
        if not values and (last in (*NUMBERS, *LISTS, *OTHERS) or key in SECTIONS):
            raise MoeguardError(f"{source}: {name} has no value")
        yield key, values if last in LISTS and len(values) > 1 else values[0] if values else True


def _is_option(word: str) -> bool:
    return re.match(r"--?[A-Za-z]", word) is not None


def _short(name: str, value: str, equals: str) -> tuple[str, str, str]:
    """A short option as a long one: ``-dp``, ``-O2``, ``-cc.key``."""
    if re.fullmatch(r"-O\d", name):
        return SHORT["-O"], name[2:], "="
    head, dot, tail = name.partition(".")
    return (f"{SHORT[head]}{dot}{tail}" if head in SHORT else name), value, equals


def _key(name: str) -> str:
    return name.replace("_", "-")


def _flat(source: str, pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The pairs, those of a section as ``section.key``."""
    for name, value in pairs:
        key = _key(str(name))
        if key in SECTIONS:
            inner = {} if value is None else _parsed(value)
            if not isinstance(inner, dict):
                raise MoeguardError(f"{source}: {key}: {_brief(value)}; allowed: an object of settings")
            yield from ((f"{key}.{_key(str(name))}", value) for name, value in inner.items())
        else:
            yield key, value


def _parsed(value: Any) -> Any:
    """A string as the JSON that it holds, anything else (and a string that holds none) as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _settings(source: str, pairs: Iterable[tuple[str, Any]], *, flat_false_counts: bool) -> Settings:
    """What the pairs say; a later one wins over an earlier one of the same key."""
    values: dict[str, Any] = {}
    ignored: list[str] = []
    notes: list[str] = []
    largest: int | None = None
    level: int | None = None
    for key, value in pairs:
        section, _, last = key.rpartition(".")
        if (section and section not in SECTIONS) or last not in (*NUMBERS, *LISTS, *OTHERS, *SWITCHES):
            ignored.append(key)
        elif value is None:
            continue
        elif last in NUMBERS:
            values[NUMBERS[last]] = _number(source, last, value)
        elif last in LISTS:
            given = _parsed(value)
            sizes = given if isinstance(given, list) else [given]
            largest = max((_number(source, last, size) for size in sizes), default=None)
        elif last in SWITCHES:
            on = _boolean(source, last, value)
            if on or section or flat_false_counts:
                values["autotune"] = on == SWITCHES[last]
            else:
                notes.append(f"{last}: false in a file is dropped by vllm serve, so it counts as not set")
        elif last == "optimization-level":
            level = _number(source, last, str(value).removeprefix("O"), least=0)
        elif last == "moe-backend":
            notes += _backend(values, str(value))
        elif last == "flashinfer-version":
            values["flashinfer_version"] = str(value)
        elif _number(source, last, value) > 1:
            notes.append(f"{last} {value}: one call may hold more than max_num_tokens x dp_size, which is not counted here")
    if largest is not None:
        values.setdefault("capture_size", largest)
    if level == 0:
        values.setdefault("autotune", False)
    return Settings(values, tuple(dict.fromkeys(ignored)), tuple(notes))


def _backend(values: dict[str, Any], name: str) -> Iterator[str]:
    name = name.lower().replace("-", "_")
    if name in BACKENDS:
        values["kernel"] = BACKENDS[name]
    elif name != "auto":
        yield f"moe-backend {name} is none of {', '.join(BACKENDS)}, so it does not choose the kernel of this audit"


def _number(source: str, key: str, value: Any, least: int = 1) -> int:
    """A whole number, also as text, with vLLM's suffixes: 8k is 8000, 8K is 8192. Raises MoeguardError on anything else."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    match = re.fullmatch(r"(\d{1,12})(\.\d{1,12})?([kmgKMG]?)", value) if isinstance(value, str) else None
    if match is not None and (match[2] is None or match[3].islower()):
        number = int(Decimal(match[1] + (match[2] or "")) * SUFFIXES[match[3]])
    if number is None or number < least:
        raise MoeguardError(f"{source}: {key}: {_brief(value)}; allowed: a whole number of {least} or more")
    return number


def _boolean(source: str, key: str, value: Any) -> bool:
    given = _parsed(value.lower()) if isinstance(value, str) else value
    if not isinstance(given, bool):
        raise MoeguardError(f"{source}: {key}: {_brief(value)}; allowed: true or false")
    return given


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
