"""One entry of the ledger: a defect that is known, and exactly where."""

from __future__ import annotations

from datetime import date, datetime
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    model_validator,
)

from moeguard.core.case import Case
from moeguard.core.finding import Finding, Kind
from moeguard.core.recipe import RECIPES
from moeguard.ledger.condition import Condition, case_values

#: How the tactic pattern of an entry names the default tactic.
DEFAULT_TACTIC = "default"


def _versions(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        text = ""
    if not text.strip():
        raise ValueError("not a version range; allowed: PEP 440, for example >=0.6.10,<=0.7.4")
    return text


def _day(value: Any) -> Any:
    if isinstance(value, datetime) or not isinstance(value, str | date):
        raise ValueError("not a date; allowed: YYYY-MM-DD")
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{value!r} is not a date; allowed: YYYY-MM-DD") from None
    return value


def _line(text: str) -> str:
    if text != " ".join(text.split()) or "://" in text:
        raise ValueError("allowed: one line of text without links")
    return text


def _recipe(name: str) -> str:
    if name not in RECIPES:
        raise ValueError(f"{name!r} is unknown; allowed: {', '.join(RECIPES)}")
    return name


_Data = PlainSerializer(lambda condition: condition.to_data())
Line = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_line)]
Names = Annotated[tuple[Line, ...], Field(min_length=1)]


class Entry(BaseModel):
    """A known defect. It covers a finding when everything that it states holds for that finding.

    id: lower-case words with hyphens. backend: its name. also: further backends that call the same kernels.
    kinds: of the findings. recipes, checks: None for all.
    tactic: shell pattern for ``str`` of the tactic (``default`` for none); None for every tactic.
    package, versions: where the defect is, as a PEP 440 range. reference: where it is reported, without a link.
    expires: last day on which the entry counts. reason: one sentence.
    crash_class: it kills or hangs the process, so that cases of its condition are not launched unless asked for.
    condition: over the case. proof: over the numbers of the finding. case: one that shows the defect.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=80)]
    backend: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    also: tuple[Annotated[str, Field(pattern=r"^[a-z0-9_]+$")], ...] = ()
    kinds: Annotated[tuple[Kind, ...], Field(min_length=1)]
    recipes: Annotated[tuple[Annotated[str, AfterValidator(_recipe)], ...], Field(min_length=1)] | None = None
    checks: Names | None = None
    tactic: Line | None = None
    package: Line
    versions: Annotated[str, AfterValidator(_versions)]
    reference: Line
    expires: Annotated[date, BeforeValidator(_day)]
    reason: Line
    crash_class: StrictBool
    condition: Annotated[Condition, PlainValidator(Condition.of_case), _Data]
    proof: Annotated[Condition, PlainValidator(Condition.of_numbers), _Data] = Condition(())
    case: Case

    @model_validator(mode="after")
    def _consistent(self) -> Entry:
        if self.crash_class and not set(self.kinds) <= {"crash", "hang"}:
            raise ValueError("crash_class is true; allowed with kinds crash and hang only")
        if not self.applies_to(self.case):
            raise ValueError("the entry's own case is not covered by its recipes and condition; allowed: a case that is")
        return self

    @property
    def backends(self) -> tuple[str, ...]:
        """All backends that it is about."""
        return (self.backend, *self.also)

    def applies_to(self, case: Case) -> bool:
        """Whether the case is one of those in which the defect is known."""
        return (self.recipes is None or case.recipe in self.recipes) and self.condition.holds(case_values(case))

    def covers(self, finding: Finding) -> bool:
        """Whether ``finding`` is this defect, wherever and whenever it was seen."""
        return (finding.backend in self.backends and finding.kind in self.kinds
                and (self.checks is None or finding.check in self.checks)
                and (self.tactic is None or fnmatchcase(finding.tactic or DEFAULT_TACTIC, self.tactic))
                and self.applies_to(finding.case) and self.proof.holds(finding.numbers))

    def absence(self, today: date) -> str | None:
        """Why the entry does not count on this machine today; None when it does."""
        if today > self.expires:
            return f"expired on {self.expires}"
        try:
            installed = version(self.package)
            if SpecifierSet(self.versions).contains(installed, prereleases=True):
                return None
        except PackageNotFoundError:
            return f"{self.package} is not installed"
        except InvalidVersion:
            return f"{self.package} {installed} is no PEP 440 version"
        return f"{self.package} {installed} is outside of {self.versions}"

    def to_data(self) -> dict[str, Any]:
        """JSON data; ``model_validate`` is inverse."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
