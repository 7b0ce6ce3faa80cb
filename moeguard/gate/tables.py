"""TOML tables that people edit: read, checked, and answered with one sentence that names the field and what is allowed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from moeguard.core.errors import AllowlistError

SCHEMA = 1
#: Bytes of a file.
LARGEST_FILE = 4 << 20
Model = TypeVar("Model", bound=BaseModel)


def text_of(path: Path, noun: str) -> str:
    """The text of a file. Raises AllowlistError when it is missing, too large or not UTF-8."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            raise AllowlistError(f"{path}: cannot read the {noun}; allowed: a regular file of at most {LARGEST_FILE} bytes")
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AllowlistError(f"{path}: cannot read the {noun} ({type(error).__name__})") from None


def table_of(text: str, source: str, *fields: str) -> dict[str, Any]:
    """The top table, which holds ``schema`` and at most ``fields``. Raises AllowlistError."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise AllowlistError(f"{source}: not valid TOML ({error})") from None
    if type(data.get("schema")) is not int or data["schema"] != SCHEMA:
        raise AllowlistError(f"{source}: schema: {data.get('schema')!r}; allowed: {SCHEMA}")
    unknown = sorted(set(data) - {"schema", *fields})
    if unknown:
        raise AllowlistError(f"{source}: {unknown[0]}: unknown field; allowed: schema, {', '.join(fields)}")
    return data


def checked(model: type[Model], data: Mapping[str, Any], where: str) -> Model:
    """``data`` as ``model``. Raises AllowlistError about the first field that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            message = f"unknown field; allowed: {', '.join(model.model_fields)}"
        raise AllowlistError(f"{where}: {field}: {message}" if field else f"{where}: {message}") from None
