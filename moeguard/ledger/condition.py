"""Conditions as data: tests of named fields, all of which must hold, and groups of which one must.

A clause is ``{"field": F, OPERATOR: VALUE}`` or ``{"any_of": [[clause, ...], ...]}``. Nothing is evaluated but comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from moeguard.core.case import Case

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "equals": lambda value, operand: bool(value == operand),
    "in": lambda value, operand: value in operand,
    "not_in": lambda value, operand: value not in operand,
    "at_least": lambda value, operand: _number(value) and value >= operand,
    "at_most": lambda value, operand: _number(value) and value <= operand,
    "has": lambda value, operand: isinstance(value, list | tuple) and operand in value,
}
#: Fields that follow from a case and may be tested beside its own.
DERIVED = ("experts_local", "first_expert", "intermediate_local")


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison. A field that has no value never passes."""

    field: str
    operator: str
    operand: Any

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether ``values[field]`` passes."""
        return self.field in values and OPERATORS[self.operator](values[self.field], self.operand)

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"field": self.field, self.operator: self.operand}


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Groups of which at least one holds as a whole."""

    groups: tuple[Condition, ...]

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether a group holds."""
        return any(group.holds(values) for group in self.groups)

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"any_of": [group.to_data() for group in self.groups]}


@dataclass(frozen=True, slots=True)
class Condition:
    """Clauses that must all hold; without a clause it always holds."""

    clauses: tuple[Test | AnyOf, ...]

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether every clause holds for ``values``, by field."""
        return all(clause.holds(values) for clause in self.clauses)

    def to_data(self) -> list[dict[str, Any]]:
        """JSON data; ``of_case`` and ``of_numbers`` are inverse."""
        return [clause.to_data() for clause in self.clauses]

    @classmethod
    def of_case(cls, data: Any) -> Condition:
        """Parse a condition over a case. Raises ValueError that names what is wrong and what is allowed."""
        return cls(tuple(_clause(clause, _check_case_test) for clause in _list(data, "a condition is")))

    @classmethod
    def of_numbers(cls, data: Any) -> Condition:
        """Parse a condition over the numbers of a finding, whose names are free. Raises ValueError."""
        return cls(tuple(_clause(clause, _check_operand) for clause in _list(data, "a proof is")))


def case_values(case: Case) -> dict[str, Any]:
    """Every field that a condition may test, by path (``shape.num_tokens``, ``routing.kind``, ``experts_local``)."""
    values: dict[str, Any] = {}
    for name in Case.model_fields:
        part = getattr(case, name)
        if isinstance(part, BaseModel):
            values |= {f"{name}.{field}": getattr(part, field) for field in type(part).model_fields}
        else:
            values[name] = part
    return values | {name: getattr(case, name) for name in DERIVED}


def _fields() -> dict[str, Any]:
    """Path of each field of a case to its annotation."""
    found: dict[str, Any] = {}
    for name, field in Case.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= {f"{name}.{inner}": one.annotation for inner, one in kind.model_fields.items()}
        elif name != "schema_version":
            found[name] = kind
    return found | dict.fromkeys(DERIVED, int)


_FIELDS = _fields()


def _list(data: Any, what: str) -> Sequence[Any]:
    if not isinstance(data, list | tuple):
        raise ValueError(f"{what} a list of clauses, not {type(data).__name__}")
    return data


def _clause(data: Any, check: Callable[[Test], None]) -> Test | AnyOf:
    if not isinstance(data, dict):
        raise ValueError(f"a clause is a table, not {type(data).__name__}")
    if set(data) == {"any_of"}:
        groups = _list(data["any_of"], "any_of is")
        if not groups or not all(groups):
            raise ValueError("any_of needs at least one group, and each group at least one clause")
        return AnyOf(tuple(Condition(tuple(_clause(one, check) for one in _list(group, "a group of any_of is")))
                           for group in groups))
    operators = [name for name in data if name in OPERATORS]
    if "field" not in data or len(operators) != 1 or len(data) != 2 or not isinstance(data["field"], str):
        raise ValueError(f"clause {data!r} is not understood; allowed: field with one of {', '.join(OPERATORS)}; or any_of")
    test = Test(data["field"], operators[0], data[operators[0]])
    check(test)
    return test


def _check_operand(test: Test) -> None:
    """Raise ValueError when the value does not fit to the operator."""
    many = test.operator in ("in", "not_in")
    if many and not (isinstance(test.operand, list | tuple) and test.operand):
        raise ValueError(f"field {test.field}: {test.operator} takes a list of values")
    if not many and isinstance(test.operand, list | tuple | dict):
        raise ValueError(f"field {test.field}: {test.operator} takes one value")
    if test.operator in ("at_least", "at_most") and not _number(test.operand):
        raise ValueError(f"field {test.field}: {test.operator} takes a number, not {test.operand!r}")


def _check_case_test(test: Test) -> None:
    """Raise ValueError when a case has no such field, or the field cannot have such a value."""
    if test.field not in _FIELDS:
        part = test.field.partition(".")[0] + "."
        near = [field for field in _FIELDS if field.startswith(part)]
        names = near or dict.fromkeys(field.partition(".")[0] + ".*" * ("." in field) for field in _FIELDS)
        raise ValueError(f"field {test.field!r} is unknown; allowed: {', '.join(names)}")
    _check_operand(test)
    kind = _FIELDS[test.field]
    choices = get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else None
    if test.operator == "has" or (choices is not None and test.operator in ("at_least", "at_most")):
        raise ValueError(f"field {test.field}: {test.operator} is not allowed for it")
    for value in test.operand if test.operator in ("in", "not_in") else (test.operand,):
        if choices is None and not _number(value):
            raise ValueError(f"field {test.field}: {value!r}; allowed: a number")
        if choices is not None and not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
            raise ValueError(f"field {test.field}: {value!r}; allowed: {', '.join(map(str, choices))}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
